"""Agreement between ranks: how long one reduction of three numbers takes over gloo on the loopback interface."""

from __future__ import annotations

import multiprocessing
import tempfile
import time
from pathlib import Path

import numpy as np
import torch
import torch.distributed as dist
from report import Row, arguments, publish

from thalweg.engine.communicator import GlooCommunicator

SIZES = (1, 2, 4)
ROUNDS = 5000


def reduce(rank: int, size: int, store: str, rounds: int, results: str) -> None:
    """One rank: microseconds of every reduction, without the first tenth."""
    torch.set_num_threads(1)
    values = np.array([1, rank, 0], np.int32)
    times = np.zeros(rounds)
    with GlooCommunicator(dist.FileStore(store, size), rank, size) as communicator:
        for number in range(rounds):
            started = time.perf_counter_ns()
            communicator.all_reduce_max(values)
            times[number] = (time.perf_counter_ns() - started) / 1000
        communicator.all_reduce_max(values)
    if rank == 0:
        np.save(results, times[rounds // 10 :])


def measure(size: int, rounds: int) -> Row:
    """Percentiles at rank 0; the ranks come at the same time, as nothing but the reduction keeps them."""
    context = multiprocessing.get_context("spawn")
    with tempfile.TemporaryDirectory() as folder:
        store, results = str(Path(folder) / "store"), str(Path(folder) / "times.npy")
        ranks = [context.Process(target=reduce, args=(rank, size, store, rounds, results)) for rank in range(size)]
        for process in ranks:
            process.start()
        for process in ranks:
            process.join()
        if any(process.exitcode for process in ranks):
            raise RuntimeError(f"a rank of {size} failed")
        times = np.load(results)
    low, median, high = np.percentile(times, (10, 50, 99))
    return {"ranks": size, "10 % us": float(low), "median us": float(median), "99 % us": float(high)}


def main() -> None:
    options = arguments(__doc__ or "").parse_args()
    sizes, rounds = ((2,), 20) if options.smoke else (SIZES, ROUNDS)
    publish([measure(size, rounds) for size in sizes], options.json)


if __name__ == "__main__":
    main()
