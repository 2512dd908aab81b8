"""The scheduler cores that the step loop is tested with, in either mode."""

from __future__ import annotations

from typing import Any

import pytest
from engine_testing.scripted import ScriptedBudget

from thalweg.scheduler import Scheduler, reference


def reference_core(*args: Any, **options: Any) -> reference.Scheduler:
    """The core in plain Python, with a verification budget, which the other one brings itself."""
    return reference.Scheduler(*args, **options, verify_budget=ScriptedBudget())


MODES = [
    pytest.param((Scheduler, False), id="sync"),
    pytest.param((Scheduler, True), id="async"),
    pytest.param((reference_core, False), id="sync-reference"),
    pytest.param((reference_core, True), id="async-reference"),
]
"""(core, is_async)"""

CORES = [pytest.param(Scheduler, id="native"), pytest.param(reference_core, id="reference")]
