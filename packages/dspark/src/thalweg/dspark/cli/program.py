"""The program `thalweg-dspark`: its commands, and what it exits with (`thalweg.interfaces.command_line`)."""

from __future__ import annotations

import argparse
from collections.abc import Sequence

from thalweg.dspark.__about__ import __version__
from thalweg.dspark.cli import calibrate, plan
from thalweg.interfaces.command_line import command_parser, run_command

COMMANDS = (calibrate, plan)


def build_parser() -> argparse.ArgumentParser:
    """The parser of the whole command line; imports no matplotlib."""
    description = "Calibrate a drafter's confidences, and plan what scheduling by them gains."
    return command_parser("thalweg-dspark", description, __version__, COMMANDS)


def main(arguments: Sequence[str] | None = None) -> int:
    """Run one command and return its exit status. `arguments` are those of the process if None."""
    return run_command(build_parser(), arguments)
