"""Aborts, preemptions and failures in every phase of constrained requests, as a function of one number."""

from __future__ import annotations

from collections import Counter

import pytest

from structured_testing.lives import PHASES, check, disturb

NUM_SEEDS, BATCH = 40, 10


@pytest.mark.parametrize("has_drafts", [False, True], ids=["plain", "drafted"])
@pytest.mark.parametrize("is_async", [False, True], ids=["in place", "overlapping"])
@pytest.mark.parametrize("first", range(0, NUM_SEEDS, BATCH))
def test_what_disturbs_one_request_changes_no_other(first: int, is_async: bool, has_drafts: bool) -> None:
    aborts = Counter[str]()
    for seed in range(first, first + BATCH):
        run = disturb(seed, has_drafts=has_drafts, is_async=is_async)
        check(run, seed)
        aborts += run.aborts
    assert aborts.keys() >= set(PHASES) - {"decoding" if is_async else "in flight"}, aborts
