"""The command line: `thalweg generate | config | inspect | kernels | tiny`."""

from thalweg.engine.cli.program import main

__all__ = ["main"]
