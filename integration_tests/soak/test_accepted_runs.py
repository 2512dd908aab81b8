"""Random models and requests that ask for anything at once: what they say with drafts is what they say without."""

from __future__ import annotations

import pytest

from accepted_runs_testing.random_requests import check

NUM_MODELS = 40


@pytest.mark.parametrize("seed", range(1000, 1000 + NUM_MODELS))
def test_random_requests_say_the_same_with_drafts_in_every_schedule(seed: int) -> None:
    seen = check(seed, num_requests=60)
    assert all(seen[name] for name in ("preempted", "accepted", "cut")), seen
