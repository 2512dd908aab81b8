"""Random constrained requests with drafts of every kind in every schedule, as a function of one number."""

from __future__ import annotations

from collections import Counter

import pytest

from structured_testing.schedules import check

NUM_SEEDS, BATCH = 100, 10


@pytest.mark.parametrize("first", range(0, NUM_SEEDS, BATCH))
def test_constrained_requests_say_what_they_say_without_drafts(first: int) -> None:
    seen = sum((check(seed, 24) for seed in range(first, first + BATCH)), Counter[str]())
    assert min(seen[kind] for kind in ("held", "preempted", "right", "legal", "illegal", "stop", "length")) > 0, seen
