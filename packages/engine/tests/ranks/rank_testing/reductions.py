"""What the ranks of the communicator's tests do."""

from __future__ import annotations

import time
from typing import Any

import numpy as np
import torch.distributed as dist
from rank_testing.launch import leave_mark

from thalweg.engine.communicator import GlooCommunicator
from thalweg.interfaces import PeerDiedError


def reduce_random(rank: int, size: int, store: Any, rounds: int) -> list[list[int]]:
    """Reductions of random arrays by ranks that come at different times."""
    generator = np.random.default_rng(rank)
    results = []
    with GlooCommunicator(store, rank, size, timeout_s=30) as communicator:
        for number in range(rounds):
            values = generator.integers(-(2**31), 2**31, 1 + number % 4, dtype=np.int32)
            if number % 5 == rank:
                time.sleep(0.002)
            reduce = communicator.all_reduce_min if number % 2 else communicator.all_reduce_max
            results.append(reduce(values).tolist())
    return results


def reduce_until_it_fails(
    rank: int, size: int, store: Any, timeout_s: float, port: int | None = None, asleep: int = -1
) -> dict[str, Any]:
    """Reduce for ever; from the eleventh round on the test does something to one of the ranks.

    port: the ranks meet through a store that rank 0 hosts. asleep: this rank stays alive and comes no more.
    """
    if port is not None:
        meeting: Any = dist.TCPStore("127.0.0.1", port, is_master=rank == 0, wait_for_workers=False)
    else:
        meeting = store
    communicator = GlooCommunicator(meeting, rank, size, timeout_s=timeout_s)
    entered = time.monotonic()
    try:
        for number in range(1_000_000):
            if number == 10 and rank == max(asleep, 0):
                leave_mark(store, "running")
            if number == 10 and rank == asleep:
                time.sleep(2 * timeout_s)
            entered = time.monotonic()
            communicator.all_reduce_max(np.array([number], np.int32))
    except PeerDiedError as error:
        waited = time.monotonic() - entered
        again = _message(lambda: communicator.all_reduce_min(np.zeros(1, np.int32)))
        started = time.monotonic()
        communicator.close()
        closed = time.monotonic() - started
        return {"message": str(error), "ranks": list(error.ranks), "waited": waited, "again": again, "closed": closed}
    raise AssertionError("nothing failed")


def _message(call: Any) -> str:
    try:
        call()
    except PeerDiedError as error:
        return str(error)
    raise AssertionError("nothing failed")
