"""Drafts, batches, chunks, overlap, verify lengths and recomputation change nothing that a constrained request says."""

from __future__ import annotations

import pytest

from structured_testing.schedules import check

WAYS = ("planned in Python", "small batches, chunks", "by throughput, overlapping", "recomputed, overlapping")


@pytest.mark.parametrize("seed", [0, 1], ids=["rejection", "coupled"])
def test_constrained_requests_say_what_they_say_without_drafts(seed: int) -> None:
    seen = check(seed, 24, WAYS)
    assert min(seen[kind] for kind in ("held", "preempted", "right", "legal", "illegal", "stop", "length")) > 0, seen
