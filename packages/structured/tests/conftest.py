"""Compile services are shared between tests: each takes seconds to start."""

from __future__ import annotations

import sys
from collections.abc import Iterator
from pathlib import Path
from typing import TYPE_CHECKING

import pytest

sys.path.insert(0, str(Path(__file__).parent))

if TYPE_CHECKING:
    from thalweg.structured import CompileService


@pytest.fixture(scope="session")
def patient() -> Iterator[CompileService]:
    from service_testing.services import make_service

    with make_service(timeout_s=60, cache_bytes=4 << 20) as service:
        yield service


@pytest.fixture(scope="session")
def impatient() -> Iterator[CompileService]:
    from service_testing.services import make_service, start

    with make_service(timeout_s=2.0, ship_after_s=0, memory_bytes=256 << 20, max_pending_per_user=4) as service:
        start(service)
        yield service


@pytest.fixture
def service(patient: CompileService) -> Iterator[CompileService]:
    """With time enough for everything that ends; nothing runs in it at first."""
    from service_testing.services import calm

    yield patient
    calm(patient)


@pytest.fixture
def strict_service(impatient: CompileService) -> Iterator[CompileService]:
    """Short of time, memory and patience, and every grammar is sent by the worker that compiled it."""
    from service_testing.services import calm

    yield impatient
    calm(impatient)
