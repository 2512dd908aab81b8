"""Show which implementation serves each op on a backend."""

from __future__ import annotations

import argparse


def add_arguments(parser: argparse.ArgumentParser) -> None:
    """Declare the options of this command."""
    parser.add_argument("--backend", metavar="NAME", default="cpu", help="backend to look at (default cpu)")


def run(arguments: argparse.Namespace) -> int:
    """Print the table. Raises BackendUnavailableError for a backend that is not installed."""
    from thalweg.kernels import table

    print(table(arguments.backend))
    return 0
