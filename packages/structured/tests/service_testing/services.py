"""Compile services for tests."""

from __future__ import annotations

from itertools import count
from typing import Any

from service_testing.grammars import quick
from service_testing.system import wait_until
from service_testing.vocabularies import small_vocabulary

from thalweg.structured import CompileService
from thalweg.structured.service.fleet import Fleet

_NUMBERS = count(10_000)


def make_service(**limits: Any) -> CompileService:
    """A service for the small vocabulary."""
    return CompileService(small_vocabulary, **limits)


def start(service: CompileService) -> None:
    """Compile a new grammar, so that the processes are there."""
    service.compile(quick(next(_NUMBERS))).result(60)


def calm(service: CompileService) -> None:
    """Cancel everything, also what a failed test has left, and wait for workers without a job."""
    service.cancel(list(service._book._waiters))
    wait_until(lambda: service._dispatcher.current is None or not fleet_of(service).running)


def fleet_of(service: CompileService) -> Fleet:
    """The processes of a service that was started."""
    dispatcher = service._dispatcher.current
    assert dispatcher is not None
    return dispatcher.fleet


def workers_of(service: CompileService) -> set[int]:
    """Process ids of the workers that can be given a job, or have one."""
    return {worker.pid for worker in fleet_of(service)._workers if worker.pid is not None}


def both_workers_of(service: CompileService) -> set[int]:
    """The same, once there are two."""
    wait_until(lambda: len(workers_of(service)) == 2)
    return workers_of(service)
