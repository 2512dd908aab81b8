"""The start of a service, which is not on the time of what waits for it."""

from __future__ import annotations

import threading
from collections.abc import Callable
from concurrent.futures import wait

import pytest
from service_testing.grammars import pathological, quick
from service_testing.vocabularies import small_vocabulary

from thalweg.interfaces import RequestError
from thalweg.structured import CompileService, Vocabulary
from thalweg.structured.service import start


def held_until(released: threading.Event) -> Callable[[], Vocabulary]:
    def make() -> Vocabulary:
        assert released.wait(60)
        return small_vocabulary()

    return make


def test_a_deadline_counts_from_when_the_service_is_ready() -> None:
    released = threading.Event()
    with CompileService(held_until(released), timeout_s=0.2) as service:
        hopeless = service.compile(pathological())
        assert not wait([hopeless], 0.5).done, "it would be over if the start counted"
        released.set()
        error = hopeless.exception(60)
    assert isinstance(error, RequestError)
    assert str(error).startswith("timeout: no grammar within timeout_s 0.2 of the start of the compile service; ")


def test_a_start_that_takes_too_long_fails_everything_that_waits(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(start, "START_TIMEOUT_S", 0.1)
    released = threading.Event()
    with CompileService(held_until(released)) as service:
        waiting = [service.compile(quick(number), user=f"user {number}") for number in range(3)]
        errors = {str(future.exception(60)) for future in waiting}
        released.set()
    assert errors == {"the compile service cannot be started: it was not ready after 0.1 s"}
    assert service.counts.num_failed == 3
