"""Parse the command line, run one command, and turn errors into one line and an exit status.

Exit status: 0 all went well; 2 the request could not be carried out; 130 interrupted.
"""

from __future__ import annotations

import argparse
import io
import os
import sys
from collections.abc import Sequence
from typing import NoReturn

from thalweg.dspark.__about__ import __version__
from thalweg.dspark.cli import calibrate, plan
from thalweg.interfaces import ThalwegError

COMMANDS = (calibrate, plan)


class _Parser(argparse.ArgumentParser):
    """An argument parser whose errors are one line, as all errors of this program are."""

    def error(self, message: str) -> NoReturn:
        self.exit(2, f"{self.prog}: {message} (see {self.prog} --help)\n")


def build_parser() -> argparse.ArgumentParser:
    """The parser of the whole command line; imports no matplotlib."""
    parser = _Parser(
        prog="thalweg-dspark",
        description="Calibrate a drafter's confidences, and plan what scheduling by them gains.",
        allow_abbrev=False,
    )
    parser.add_argument("--version", action="version", version=f"thalweg-dspark {__version__}")
    commands = parser.add_subparsers(title="commands", metavar="COMMAND", required=True)
    for module in COMMANDS:
        name = module.__name__.rpartition(".")[2]
        summary = (module.__doc__ or "").split("\n")[0]
        command = commands.add_parser(name, help=summary, description=summary, allow_abbrev=False)
        module.add_arguments(command)
        command.set_defaults(run=module.run)
    return parser


def main(arguments: Sequence[str] | None = None) -> int:
    """Run one command and return its exit status. `arguments` are those of the process if None."""
    for name in ("stdout", "stderr"):
        if getattr(sys, name) is None:  # closed by the caller: what would be shown there goes nowhere
            setattr(sys, name, open(os.devnull, "w", encoding="utf-8"))  # noqa: SIM115
        stream = getattr(sys, name)
        if isinstance(stream, io.TextIOWrapper):
            stream.reconfigure(errors="backslashreplace")  # a terminal that lacks a character must not end the run
    parsed = build_parser().parse_args(arguments)
    try:
        parsed.run(parsed)
        sys.stdout.flush()
        return 0
    except ThalwegError as error:
        print(f"thalweg-dspark: {' '.join(str(error).split())}", file=sys.stderr)
        return 2
    except KeyboardInterrupt:
        print("thalweg-dspark: interrupted", file=sys.stderr)
        return 130
    except BrokenPipeError:
        _leave_stdout()  # the reader has left, as `head` does
        return 0
    except OSError as error:
        if error.filename is None:
            _leave_stdout()
        print(f"thalweg-dspark: {error.filename or 'standard output'}: {error.strerror}", file=sys.stderr)
        return 2


def _leave_stdout() -> None:
    """Point stdout elsewhere, so that the flush at exit does not complain about it either."""
    os.dup2(os.open(os.devnull, os.O_WRONLY), sys.stdout.fileno())
