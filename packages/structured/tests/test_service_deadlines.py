"""What a grammar may cost: time, memory, and places in the queue."""

from __future__ import annotations

import os
import resource
import signal
import time
from pathlib import Path

import pytest
from service_testing.grammars import pathological, quick, tangle
from service_testing.services import both_workers_of, fleet_of, start, workers_of
from service_testing.system import wait_until

from thalweg.interfaces import RequestError
from thalweg.structured import CompileService
from thalweg.structured.service.fleet import Fleet
from thalweg.structured.service.jobs import Job
from thalweg.structured.service.processes import WorkerHandle

LATE_S = 0.5
"""What a busy machine may add to a deadline; benchmarks/structured_compile.py measures the exactness."""


class Submitted:
    """A future, and when it was submitted at the earliest and at the latest."""

    def __init__(self, service: CompileService, name: str, user: str = "") -> None:
        self.earliest = time.monotonic()
        self.future = service.compile(pathological(name), user=user)
        self.latest = time.monotonic()

    def check(self, timeout_s: float) -> None:
        error = self.future.exception(30)
        ended = time.monotonic()
        assert isinstance(error, RequestError)
        assert str(error).startswith(f"timeout: no grammar within timeout_s {timeout_s:g} of its submission")
        assert ended - self.earliest >= timeout_s
        assert ended - self.latest < timeout_s + LATE_S


def test_a_pathological_grammar_ends_at_its_deadline_and_its_neighbours_do_not_notice(
    strict_service: CompileService,
) -> None:
    before, workers = strict_service.counts, both_workers_of(strict_service)
    hopeless = Submitted(strict_service, "n", user="a")
    wait_until(lambda: fleet_of(strict_service).running)
    for number in range(5):
        assert strict_service.compile(quick(number), user="b").result(60)
    assert not hopeless.future.done()
    hopeless.check(2)
    assert strict_service.compile(quick(6), user="a").result(60)
    assert len(workers & both_workers_of(strict_service)) == 1
    counts = strict_service.counts
    assert counts.num_timeouts == before.num_timeouts + 1
    assert counts.num_workers_replaced == before.num_workers_replaced + 1


def test_the_deadline_counts_from_submission_even_where_no_worker_was_free(strict_service: CompileService) -> None:
    for submitted in [Submitted(strict_service, name) for name in "abcd"]:
        submitted.check(2)


def test_one_user_cannot_fill_the_queue_and_others_still_can(strict_service: CompileService) -> None:
    for number in range(2):
        strict_service.compile(pathological(f"many{number}"), user="many")
    wait_until(lambda: len(fleet_of(strict_service).running) == 2)
    for number in range(4):
        strict_service.compile(quick(100 + number), user="many")
    with pytest.raises(RequestError, match="4 grammars of user 'many' are waiting"):
        strict_service.compile(quick(200), user="many")
    assert strict_service.compile(quick(201), user="other").result(60)


def test_workers_have_limits_and_leave_no_core(strict_service: CompileService) -> None:
    for pid in both_workers_of(strict_service):
        size = int(Path(f"/proc/{pid}/statm").read_text().split()[0]) * resource.getpagesize()
        space, _ = resource.prlimit(pid, resource.RLIMIT_AS)
        assert (200 << 20) <= space - size <= (256 << 20)
        assert resource.prlimit(pid, resource.RLIMIT_STACK)[0] == 8 << 20
        assert resource.prlimit(pid, resource.RLIMIT_CORE)[0] == 0


def leave_memory(service: CompileService, num_bytes: int) -> set[int]:
    """Lower the limits of both workers, and return their process ids."""
    start(service)
    workers = both_workers_of(service)
    for pid in workers:
        size = int(Path(f"/proc/{pid}/statm").read_text().split()[0]) * resource.getpagesize()
        hard = resource.prlimit(pid, resource.RLIMIT_AS)[1]
        resource.prlimit(pid, resource.RLIMIT_AS, (size + num_bytes, hard))
    return workers


def replace_workers(service: CompileService, workers: set[int]) -> None:
    """End those that are left of these."""
    for pid in workers & workers_of(service):
        os.kill(pid, signal.SIGKILL)
    wait_until(lambda: not workers & both_workers_of(service))


def test_a_grammar_that_needs_too_much_memory_fails_alone_and_its_worker_is_replaced(service: CompileService) -> None:
    workers = leave_memory(service, 1 << 20)
    before = service.counts
    error = service.compile(tangle(40)).exception(60)
    assert isinstance(error, RequestError)
    assert str(error).startswith("out of memory")
    assert "memory_bytes 4294967296" in str(error)
    assert service.counts.num_timeouts == before.num_timeouts + 1
    assert service.compile(quick(300)).result(60)
    assert len(workers & both_workers_of(service)) == 1
    replace_workers(service, workers)


def test_the_kernel_ends_a_worker_that_spends_more_time_than_it_may(
    service: CompileService, monkeypatch: pytest.MonkeyPatch
) -> None:
    start = Fleet.start

    def start_with_a_second(fleet: Fleet, worker: WorkerHandle, job: Job, cpu_s: float) -> None:
        assert cpu_s == 60
        start(fleet, worker, job, 1.0)

    monkeypatch.setattr(Fleet, "start", start_with_a_second)
    before = service.counts
    error = service.compile(pathological("cpu")).exception(30)
    assert isinstance(error, RequestError)
    assert str(error).startswith("timeout: the grammar takes more than 60 processor seconds")
    assert service.counts.num_timeouts == before.num_timeouts + 1
    assert service.compile(quick(400)).result(60)
