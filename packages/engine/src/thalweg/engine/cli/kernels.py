"""Show which implementation serves each op on a backend."""

from __future__ import annotations

import argparse

from thalweg.interfaces.backend import BACKEND_NAMES


def add_arguments(parser: argparse.ArgumentParser) -> None:
    """Declare the options of this command."""
    names = ", ".join(BACKEND_NAMES)
    parser.add_argument("--backend", metavar="NAME", default="cpu", help=f"one of {names} (default cpu)")
    parser.add_argument("--batch-invariant", action="store_true", help="take only implementations that promise it")


def run(arguments: argparse.Namespace) -> int:
    """Print the table. Raises ConfigError for an unknown name, BackendUnavailableError for a backend not installed."""
    from thalweg.kernels import bind, table

    bind(arguments.backend)
    print(table(arguments.backend, batch_invariant=arguments.batch_invariant))
    return 0
