"""Requests of several threads that are quick, invalid, hopeless, cancelled, equal and kept, while processes die."""

from __future__ import annotations

import os
import random
import signal
import threading
from collections import Counter
from concurrent.futures import Future, wait

from service_testing.grammars import pathological, quick
from service_testing.services import both_workers_of, calm, fleet_of, start, workers_of
from service_testing.system import wait_until

from thalweg.interfaces import GrammarSpec, Matcher, RequestError
from thalweg.structured import CompileService

NUM_THREADS = 4


def disorder(service: CompileService, seed: int, num_requests: int) -> Counter[str]:
    """Run it, and check that every request ended once and in the way it had to, and that the totals say so."""
    start(service)
    before = service.counts
    futures: list[tuple[str, Future[Matcher]]] = []
    refused: list[str] = []
    threads = [
        threading.Thread(target=_submit, args=(service, seed + number, num_requests // NUM_THREADS, futures, refused))
        for number in range(NUM_THREADS)
    ]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    _, pending = wait([future for _, future in futures], 60)
    assert not pending
    ends = Counter(f"{kind}: {_end_of(future)}" for kind, future in futures)
    assert ends["invalid: matcher"] == ends["hopeless: matcher"] == 0
    assert ends["quick: matcher"] > 0
    assert len(futures) + len(refused) == num_requests // NUM_THREADS * NUM_THREADS
    counts = service.counts
    parts = ("num_compiled", "num_cache_hits", "num_failed", "num_cancelled")
    assert counts.num_submitted - before.num_submitted == len(futures)
    assert sum(getattr(counts, name) - getattr(before, name) for name in parts) == len(futures)
    num_cancelled = sum(future.cancelled() for _, future in futures)
    assert counts.num_cancelled - before.num_cancelled <= num_cancelled
    calm(service)
    wait_until(lambda: service.compile(quick()).exception() is None)
    both_workers_of(service)
    return ends


def _submit(
    service: CompileService,
    seed: int,
    num_requests: int,
    futures: list[tuple[str, Future[Matcher]]],
    refused: list[str],
) -> None:
    rng = random.Random(seed)
    for _ in range(num_requests):
        kind = rng.choices(["quick", "invalid", "hopeless"], [20, 3, 1])[0]
        spec = {
            "quick": quick(rng.randrange(500)),
            "invalid": GrammarSpec.ebnf(f'root ::= "a" missing{rng.randrange(50)}'),
            "hopeless": pathological(f"d{rng.randrange(3)}_"),
        }[kind]
        try:
            future = service.compile(spec, user=rng.choice("abc"))
        except RequestError:
            refused.append(kind)
        else:
            futures.append((kind, future))
        if rng.random() < 0.1 and futures:
            service.cancel([rng.choice(futures)[1]])
        if rng.random() < 0.02:
            _kill_something(service, rng)
        if rng.random() < 0.3:
            wait([future for _, future in futures[-3:]], rng.random() * 0.05)


def _kill_something(service: CompileService, rng: random.Random) -> None:
    """A worker; rarely the process that all come from."""
    dispatcher = service._dispatcher.current
    if dispatcher is None:
        return
    pids = sorted(workers_of(service))
    zygote = fleet_of(service).zygote_pid
    if rng.random() < 0.05 and zygote is not None:
        pids = [zygote]
    if pids:
        try:
            os.kill(rng.choice(pids), signal.SIGKILL)
        except ProcessLookupError:
            return


def _end_of(future: Future[Matcher]) -> str:
    if future.cancelled():
        return "cancelled"
    error = future.exception(0)
    if error is None:
        return "matcher"
    assert isinstance(error, RequestError)
    return str(error).split(":")[0]
