"""Constrained requests are preempted, resumed and aborted in every phase, and others fail; the rest stays as it is."""

from __future__ import annotations

from collections import Counter

from structured_testing.lives import PHASES, check, disturb

WAYS = ((False, False), (True, False), (False, True), (True, True))


def test_what_disturbs_one_request_changes_no_other() -> None:
    aborts = Counter[str]()
    for is_async, has_drafts in WAYS:
        run = disturb(2, has_drafts=has_drafts, is_async=is_async)
        check(run, 2)
        aborts += run.aborts
    assert aborts.keys() == set(PHASES), aborts
