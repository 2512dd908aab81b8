"""Five hundred random workloads, asynchronous against synchronous."""

from __future__ import annotations

import pytest

from async_testing.comparison import check_workloads
from thalweg.model import Model

NUM_WORKLOADS = 500
BATCH = 25


@pytest.mark.parametrize("first_seed", range(0, NUM_WORKLOADS, BATCH))
def test_asynchronous_equals_synchronous(first_seed: int, small_checkpoint: str, small_model: Model) -> None:
    seen = check_workloads(range(first_seed, first_seed + BATCH), small_checkpoint, small_model)
    assert min(seen["accepted drafts"], seen["in flight with the step before"]) > 0, seen
