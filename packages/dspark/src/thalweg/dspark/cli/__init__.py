"""The command line: `thalweg-dspark calibrate | plan`."""

from thalweg.dspark.cli.program import main

__all__ = ["main"]
