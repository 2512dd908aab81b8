"""Starts one process per rank and collects what each returns or raises."""

from __future__ import annotations

import multiprocessing
import pickle
import time
import traceback
from collections.abc import Callable
from dataclasses import dataclass
from datetime import timedelta
from multiprocessing.process import BaseProcess
from pathlib import Path
from typing import Any

import torch
import torch.distributed as dist

PATIENCE_S = 60.0
GLOO_TIMEOUT = timedelta(seconds=30)


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
        self._context.set_forkserver_preload(["thalweg.eplb.executors"])
        self._processes: list[BaseProcess] = []

    def run(self, program: Callable[..., Any], size: int, **options: Any) -> list[Ended]:
        """`program(store, rank, size, **options)` in as many processes, within a gloo group of them."""
        for rank in range(size):
            arguments = (program, self._directory, rank, size, options)
            self._processes.append(self._context.Process(target=_main, args=arguments))
            self._processes[-1].start()
        deadline = time.monotonic() + PATIENCE_S
        for rank, process in enumerate(self._processes):
            process.join(max(deadline - time.monotonic(), 0.0))
            assert process.exitcode is not None, f"rank {rank} does not end"
        return [self._ended(rank) for rank in range(size)]

    def results(self, program: Callable[..., Any], size: int, **options: Any) -> list[Any]:
        """What every rank returned; none of them failed."""
        ended = self.run(program, size, **options)
        assert not any(rank.error or rank.exit_code for rank in ended), "\n".join(rank.error for rank in ended)
        return [rank.result for rank in ended]

    def kill_all(self) -> None:
        for process in self._processes:
            if process.is_alive():
                process.kill()
            process.join()

    def _ended(self, rank: int) -> Ended:
        exit_code = self._processes[rank].exitcode
        assert exit_code is not None
        result, error = (self._directory / f"{kind}-{rank}" for kind in ("result", "error"))
        return Ended(
            exit_code,
            pickle.loads(result.read_bytes()) if result.exists() else None,
            error.read_text() if error.exists() else "",
        )


def _main(program: Callable[..., Any], directory: Path, rank: int, size: int, options: dict[str, Any]) -> None:
    torch.set_num_threads(1)
    try:
        store = dist.FileStore(str(directory / "store"), size)
        dist.init_process_group("gloo", store=store, rank=rank, world_size=size, timeout=GLOO_TIMEOUT)
        result = program(dist.PrefixStore("test", store), rank, size, **options)
        (directory / f"result-{rank}").write_bytes(pickle.dumps(result))
    except BaseException:
        (directory / f"error-{rank}").write_text(traceback.format_exc())
        raise
