"""Compile services for tests."""

from __future__ import annotations

from typing import Any

from service_testing.grammars import quick
from service_testing.system import children_of, wait_until
from service_testing.vocabularies import small_vocabulary

from thalweg.structured import CompileService
from thalweg.structured.fleet import Fleet


def make_service(**limits: Any) -> CompileService:
    """A service for the small vocabulary."""
    return CompileService(small_vocabulary, **limits)


def start(service: CompileService) -> None:
    """Compile until the processes are there, which may take longer than the deadline of one grammar."""
    wait_until(lambda: service.compile(quick()).exception() is None, 60)


def fleet_of(service: CompileService) -> Fleet:
    """The processes of a service that was started."""
    dispatcher = service._running.dispatcher
    assert dispatcher is not None
    return dispatcher.fleet


def workers_of(service: CompileService) -> list[int]:
    """Process ids of its workers."""
    zygote = fleet_of(service).zygote_pid
    return [] if zygote is None else children_of(zygote)
