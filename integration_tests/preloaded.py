"""A Python that has imported what every script needs, and forks for each of them: seconds less per script."""

from __future__ import annotations

import json
import os
import runpy
import subprocess
import sys
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any


@dataclass(frozen=True)
class Ended:
    """A script that has ended."""

    returncode: int
    stdout: str
    stderr: str


class PreloadedPython:
    """Runs scripts one at a time, each in a process of its own; `close` when done."""

    def __init__(self) -> None:
        self._server = subprocess.Popen(
            [sys.executable, __file__], stdin=subprocess.PIPE, stdout=subprocess.PIPE, text=True
        )

    def run(self, script: Path, arguments: Sequence[str] = (), *, cwd: Path) -> Ended:
        """Run a script as `python script arguments` would in the folder `cwd`, which also takes what it prints."""
        said, complained = cwd / "stdout", cwd / "stderr"
        job = {"script": str(script), "arguments": list(arguments), "cwd": str(cwd)}
        job |= {"stdout": str(said), "stderr": str(complained)}
        assert self._server.stdin is not None
        assert self._server.stdout is not None
        self._server.stdin.write(json.dumps(job) + "\n")
        self._server.stdin.flush()
        returncode = int(self._server.stdout.readline())
        return Ended(returncode, said.read_text(), complained.read_text())

    def close(self) -> None:
        self._server.communicate()


def serve() -> dict[str, Any] | None:
    """Fork for every job; returns in each child, with its job, and in the server when nobody asks any more."""
    while line := sys.stdin.readline():
        child = os.fork()
        if not child:
            return dict(json.loads(line))
        _, status = os.waitpid(child, 0)
        print(os.waitstatus_to_exitcode(status), flush=True)
    return None


def become(job: dict[str, Any]) -> None:
    """Go on as the script."""
    for name, stream in (("stdout", 1), ("stderr", 2)):
        with open(job[name], "wb") as file:
            os.dup2(file.fileno(), stream)
    with open(os.devnull, "rb") as nothing:
        os.dup2(nothing.fileno(), 0)
    os.chdir(job["cwd"])
    sys.argv = [job["script"], *job["arguments"]]
    sys.path[0] = str(Path(job["script"]).parent)
    runpy.run_path(job["script"], run_name="__main__")


if __name__ == "__main__":
    import xgrammar  # noqa: F401

    import thalweg.engine

    for public in thalweg.engine.__all__:
        getattr(thalweg.engine, public)
    accepted = serve()
    if accepted is not None:
        become(accepted)
