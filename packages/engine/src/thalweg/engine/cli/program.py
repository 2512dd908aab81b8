"""The program `thalweg`: its commands, and what it exits with (`thalweg.interfaces.command_line`).

Status 1 is a refused prompt or an incomplete checkpoint.
"""

from __future__ import annotations

import argparse
from collections.abc import Sequence

from thalweg.engine.__about__ import __version__
from thalweg.engine.cli import config, generate, inspect, kernels, tiny
from thalweg.interfaces.command_line import command_parser, run_command

COMMANDS = (generate, config, inspect, kernels, tiny)


def build_parser() -> argparse.ArgumentParser:
    """The parser of the whole command line; imports no torch."""
    return command_parser("thalweg", "Run DeepSeek-V4.1 checkpoints and look into them.", __version__, COMMANDS)


def main(arguments: Sequence[str] | None = None) -> int:
    """Run one command and return its exit status. `arguments` are those of the process if None."""
    return run_command(build_parser(), arguments)
