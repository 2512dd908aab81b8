"""The scheduler cores that the step loop is tested with, in either mode."""

from __future__ import annotations

import pytest

from thalweg.scheduler import Scheduler, reference

MODES = [
    pytest.param((Scheduler, False), id="sync"),
    pytest.param((reference.Scheduler, False), id="sync-reference"),
    pytest.param((reference.Scheduler, True), id="async-reference"),
]
"""(core, is_async)"""

ASYNC_CORES = [pytest.param(reference.Scheduler, id="reference")]
