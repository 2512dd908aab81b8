"""What a grammar may cost: time, memory, and places in the queue."""

from __future__ import annotations

import os
import resource
import signal
import time
from concurrent.futures import Future
from pathlib import Path

import pytest
from service_testing.grammars import pathological, quick, tangle
from service_testing.services import fleet_of, workers_of
from service_testing.system import wait_until

from thalweg.interfaces import Matcher, RequestError
from thalweg.structured import CompileService
from thalweg.structured.fleet import Fleet
from thalweg.structured.jobs import Job
from thalweg.structured.processes import Worker

LATE_S = 0.5
"""What a busy machine may add to a deadline; benchmarks/structured_compile.py measures the exactness."""


def ended_after(future: Future[Matcher], began: float) -> tuple[float, str]:
    error = future.exception(30)
    assert isinstance(error, RequestError)
    return time.monotonic() - began, str(error)


def test_a_pathological_grammar_ends_at_its_deadline_and_its_neighbours_do_not_notice(
    strict_service: CompileService,
) -> None:
    before, workers = strict_service.counts, set(workers_of(strict_service))
    hopeless, began = strict_service.compile(pathological(), user="a"), time.monotonic()
    wait_until(lambda: fleet_of(strict_service).running)
    for number in range(5):
        assert strict_service.compile(quick(number), user="b").result(1)
    assert not hopeless.done()
    seconds, text = ended_after(hopeless, began)
    assert 0.99 <= seconds < 1.0 + LATE_S
    assert text.startswith("timeout: ")
    assert "timeout_s 1" in text
    assert strict_service.compile(quick(6), user="a").result(1)
    wait_until(lambda: len(workers & set(workers_of(strict_service))) == 1)
    counts = strict_service.counts
    assert counts.num_timeouts == before.num_timeouts + 1
    assert counts.num_workers_replaced == before.num_workers_replaced + 1


def test_the_deadline_counts_from_submission_even_where_no_worker_was_free(strict_service: CompileService) -> None:
    submitted = [(strict_service.compile(pathological(name)), time.monotonic()) for name in "abcd"]
    for future, began in submitted:
        seconds, text = ended_after(future, began)
        assert 0.99 <= seconds < 1.0 + LATE_S
        assert text.startswith("timeout")


def test_one_user_cannot_fill_the_queue_and_others_still_can(strict_service: CompileService) -> None:
    for number in range(2):
        strict_service.compile(pathological(f"many{number}"), user="many")
    wait_until(lambda: len(fleet_of(strict_service).running) == 2)
    for number in range(4):
        strict_service.compile(quick(100 + number), user="many")
    with pytest.raises(RequestError, match="4 grammars of user 'many' are waiting"):
        strict_service.compile(quick(200), user="many")
    assert strict_service.compile(quick(201), user="other").result(2)


def test_workers_have_limits_and_leave_no_core(strict_service: CompileService) -> None:
    wait_until(lambda: len(workers_of(strict_service)) == 2)
    for pid in workers_of(strict_service):
        size = int(Path(f"/proc/{pid}/statm").read_text().split()[0]) * resource.getpagesize()
        space, _ = resource.prlimit(pid, resource.RLIMIT_AS)
        assert (200 << 20) <= space - size <= (256 << 20)
        assert resource.prlimit(pid, resource.RLIMIT_STACK)[0] == 8 << 20
        assert resource.prlimit(pid, resource.RLIMIT_CORE)[0] == 0


def test_a_grammar_that_needs_too_much_memory_fails_alone_and_its_worker_is_replaced(service: CompileService) -> None:
    service.compile(quick()).result(60)
    wait_until(lambda: len(workers_of(service)) == 2)
    before, workers = service.counts, set(workers_of(service))
    for pid in workers:
        size = int(Path(f"/proc/{pid}/statm").read_text().split()[0]) * resource.getpagesize()
        hard = resource.prlimit(pid, resource.RLIMIT_AS)[1]
        resource.prlimit(pid, resource.RLIMIT_AS, (size + (50 << 20), hard))
    error = service.compile(tangle(50)).exception(60)
    assert isinstance(error, RequestError)
    assert str(error).startswith("out of memory")
    assert "memory_bytes 4294967296" in str(error)
    assert service.counts.num_timeouts == before.num_timeouts + 1
    wait_until(lambda: len(workers & set(workers_of(service))) == 1)
    assert service.compile(quick(300)).result(60)
    for pid in workers & set(workers_of(service)):
        os.kill(pid, signal.SIGKILL)  # its limit is not the one that the next test expects


def test_the_kernel_ends_a_worker_that_spends_more_time_than_it_may(
    service: CompileService, monkeypatch: pytest.MonkeyPatch
) -> None:
    start = Fleet.start

    def start_with_a_second(fleet: Fleet, worker: Worker, job: Job, cpu_s: float) -> None:
        assert cpu_s == 60
        start(fleet, worker, job, 1.0)

    monkeypatch.setattr(Fleet, "start", start_with_a_second)
    before = service.counts
    error = service.compile(pathological("cpu")).exception(30)
    assert isinstance(error, RequestError)
    assert str(error).startswith("timeout: the grammar takes more than 60 processor seconds")
    assert service.counts.num_timeouts == before.num_timeouts + 1
    assert service.compile(quick(400)).result(60)
