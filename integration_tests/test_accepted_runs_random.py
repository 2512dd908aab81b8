"""A part of the soak: requests that ask for anything at once say with drafts, however served, what they say without."""

from __future__ import annotations

from collections import Counter

from accepted_runs_testing.random_requests import check

WAYS = ("by plan, overlapping", "small batches, chunks", "recomputed, overlapping, by throughput")


def test_random_requests_say_the_same_with_drafts() -> None:
    seen = sum((check(seed, num_requests=20, ways=WAYS) for seed in (1, 2)), Counter[str]())
    assert all(seen[name] > 10 for name in ("preempted", "accepted", "cut")), seen
