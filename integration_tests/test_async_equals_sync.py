"""Whether steps overlap or not, requests say the same: some of the random workloads of the soak run."""

from __future__ import annotations

import pytest

from async_testing.comparison import check_workloads
from thalweg.model import Model

NUM_WORKLOADS = 16
INTERESTING = {
    "accepted drafts",
    "chunks",
    "cut in an accepted run",
    "ended: abort",
    "ended: length",
    "ended: stop",
    "in flight with the step before",
    "preempted",
    "shared out anew",
}


@pytest.mark.slow
def test_asynchronous_equals_synchronous(small_checkpoint: str, small_model: Model) -> None:
    seen = check_workloads(range(NUM_WORKLOADS), small_checkpoint, small_model)
    assert {name for name in INTERESTING if not seen[name]} == set(), seen
