"""What the command-line programs of all components share: subcommands, one-line errors, exit statuses.

Exit status: 0 all went well; 1 the command ran and reports a problem; 2 the request could not be carried out;
130 interrupted. Not imported by the package itself.
"""

from __future__ import annotations

import argparse
import io
import os
import sys
from collections.abc import Sequence
from types import ModuleType
from typing import NoReturn

from thalweg.interfaces.errors import ThalwegError


class LineParser(argparse.ArgumentParser):
    """An argument parser whose errors are one line, as all errors of these programs are."""

    def error(self, message: str) -> NoReturn:
        self.exit(2, f"{self.prog}: {message} (see {self.prog} --help)\n")


def command_parser(prog: str, description: str, version: str, modules: Sequence[ModuleType]) -> LineParser:
    """A parser with one subcommand per module.

    The last part of the module's name is the command, the first line of its docstring the summary. It has
    `add_arguments(parser)` and `run(arguments)`, which returns the exit status.
    """
    parser = LineParser(prog=prog, description=description, allow_abbrev=False)
    parser.add_argument("--version", action="version", version=f"{prog} {version}")
    commands = parser.add_subparsers(title="commands", metavar="COMMAND", required=True)
    for module in modules:
        name = module.__name__.rpartition(".")[2]
        summary = (module.__doc__ or "").split("\n")[0]
        command = commands.add_parser(name, help=summary, description=summary, allow_abbrev=False)
        module.add_arguments(command)
        command.set_defaults(run=module.run)
    return parser


def run_command(parser: argparse.ArgumentParser, arguments: Sequence[str] | None = None) -> int:
    """Run the command that the arguments name and return its exit status; None: the arguments of the process."""
    _open_streams()
    parsed = parser.parse_args(arguments)
    try:
        status: int = parsed.run(parsed)
        sys.stdout.flush()
        return status
    except ThalwegError as error:
        return _refuse(parser, " ".join(str(error).split()))
    except KeyboardInterrupt:
        print(f"{parser.prog}: interrupted", file=sys.stderr)
        return 130
    except BrokenPipeError:
        _leave_stdout()  # the reader has left, as `head` does
        return 0
    except OSError as error:
        if error.filename is None:
            _leave_stdout()
        return _refuse(parser, f"{error.filename or 'standard output'}: {error.strerror}")


def _refuse(parser: argparse.ArgumentParser, reason: str) -> int:
    print(f"{parser.prog}: {reason}", file=sys.stderr)
    return 2


def _open_streams() -> None:
    """Let output that the caller closed go nowhere, and characters that a terminal lacks be escaped."""
    for name in ("stdout", "stderr"):
        if getattr(sys, name) is None:
            setattr(sys, name, open(os.devnull, "w", encoding="utf-8"))  # noqa: SIM115
        stream = getattr(sys, name)
        if isinstance(stream, io.TextIOWrapper):
            stream.reconfigure(errors="backslashreplace")


def _leave_stdout() -> None:
    """Point stdout elsewhere, so that the flush at exit does not complain about it either."""
    os.dup2(os.open(os.devnull, os.O_WRONLY), sys.stdout.fileno())
