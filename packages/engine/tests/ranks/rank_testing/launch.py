"""Starts one process per rank and collects what each returns, how it ends and when."""

from __future__ import annotations

import json
import multiprocessing
import os
import signal
import sys
import time
import traceback
from collections.abc import Callable
from dataclasses import dataclass
from multiprocessing.process import BaseProcess
from pathlib import Path
from typing import Any

import torch
import torch.distributed as dist

Program = Callable[..., Any]
"""Called with rank, size, a store and keywords; returns something that JSON has."""
PATIENCE_S = 60.0
"""No group of ranks in a test needs nearly as long, also on a machine that is busy with others."""


@dataclass(frozen=True)
class Ended:
    """A rank that has ended."""

    exit_code: int
    result: Any
    """What the program returned; None if it did not get that far."""
    error: str
    """Its traceback, empty without one."""


class Launcher:
    """One group of ranks. Processes are forked from a server that has torch loaded, so they start in milliseconds."""

    def __init__(self, directory: Path) -> None:
        self._directory = directory
        self._context = multiprocessing.get_context("forkserver")
        self._context.set_forkserver_preload(["thalweg.engine.assembly", "thalweg.engine.communicator"])
        self._processes: list[BaseProcess] = []

    def start(self, program: Program, size: int, **options: Any) -> None:
        """Run `program(rank, size, store, **options)` in `size` processes."""
        for rank in range(size):
            process = self._context.Process(target=_main, args=(program, rank, size, self._directory, options))
            process.start()
            self._processes.append(process)

    def send(self, rank: int, number: signal.Signals) -> None:
        pid = self._processes[rank].pid
        assert pid is not None
        os.kill(pid, number)

    def wait_for(self, name: str) -> None:
        """Until some rank has called `leave_mark(name)`."""
        deadline = time.monotonic() + PATIENCE_S
        while not (self._directory / name).exists():
            assert time.monotonic() < deadline, f"no rank came to {name}"
            assert any(process.is_alive() for process in self._processes), self._errors()
            time.sleep(0.005)

    def join(self, *ranks: int) -> list[Ended]:
        """Wait for these ranks, all without arguments, to end by themselves."""
        deadline = time.monotonic() + PATIENCE_S
        wanted = ranks or range(len(self._processes))
        for rank in wanted:
            self._processes[rank].join(max(deadline - time.monotonic(), 0.0))
            assert self._processes[rank].exitcode is not None, f"rank {rank} does not end"
        return [self._ended(rank) for rank in wanted]

    def results(self) -> list[Any]:
        """What every rank returned; none of them failed."""
        ended = self.join()
        assert not any(rank.error or rank.exit_code for rank in ended), self._errors()
        return [rank.result for rank in ended]

    def kill_all(self) -> None:
        for process in self._processes:
            if process.is_alive():
                process.kill()  # also ends a stopped one
            process.join()

    def _ended(self, rank: int) -> Ended:
        exit_code = self._processes[rank].exitcode
        assert exit_code is not None
        result, error = (self._directory / f"{kind}-{rank}.json" for kind in ("result", "error"))
        return Ended(
            exit_code,
            json.loads(result.read_text()) if result.exists() else None,
            error.read_text() if error.exists() else "",
        )

    def _errors(self) -> str:
        return "\n".join(path.read_text() for path in sorted(self._directory.glob("error-*.json")))


def leave_mark(store: Any, name: str) -> None:
    """Tell `Launcher.wait_for`."""
    Path(store.path).with_name(name).touch()


def _main(program: Program, rank: int, size: int, directory: Path, options: dict[str, Any]) -> None:
    torch.set_num_threads(1)
    try:
        result = program(rank, size, dist.FileStore(str(directory / "store"), size), **options)
        (directory / f"result-{rank}.json").write_text(json.dumps(result))
    except BaseException:
        (directory / f"error-{rank}.json").write_text(traceback.format_exc())
        raise
    sys.exit(result.get("exit_code", 0) if isinstance(result, dict) else 0)
