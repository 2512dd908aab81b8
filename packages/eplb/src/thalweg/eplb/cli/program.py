"""The program `thalweg-eplb`: its commands, and what it exits with (`thalweg.interfaces.command_line`)."""

from __future__ import annotations

import argparse
from collections.abc import Sequence

from thalweg.eplb.__about__ import __version__
from thalweg.eplb.cli import compare, plan, plot
from thalweg.interfaces.command_line import command_parser, run_command

COMMANDS = (plan, compare, plot)


def build_parser() -> argparse.ArgumentParser:
    """The parser of the whole command line; imports no matplotlib."""
    description = "Plan where the copies of experts live, from a saved history of their loads."
    return command_parser("thalweg-eplb", description, __version__, COMMANDS)


def main(arguments: Sequence[str] | None = None) -> int:
    """Run one command and return its exit status. `arguments` are those of the process if None."""
    return run_command(build_parser(), arguments)
