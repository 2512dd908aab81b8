"""The command line: `thalweg-eplb plan | compare | plot`."""

from thalweg.eplb.cli.program import main

__all__ = ["main"]
