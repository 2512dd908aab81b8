"""Random steps of several outputs, filled by the batch filler and by the slow twins of its matchers."""

from __future__ import annotations

import random

import numpy as np
from matcher_testing.replay import ReplayMatcher
from matcher_testing.walks import make_twins, some_token, state_of

from thalweg.interfaces import DraftWalk
from thalweg.structured import BatchFiller, GrammarMatcher

WORDS = 4
UNTOUCHED = 0x0BADF00D


def expected_rows(twin: ReplayMatcher, walk: DraftWalk) -> dict[int, np.ndarray]:  # type: ignore[type-arg]
    """Row -> mask, as the definition has it: fill where constrained, feed a draft, stop at the first not allowed."""
    masks = {}
    scratch = np.zeros((1, WORDS), np.int32)
    num_fed = 0
    for number, draft_id in enumerate([*walk.draft_ids, -1]):
        if twin.is_constrained:
            twin.fill_bitmask(scratch, 0)
            masks[walk.first_row + number] = scratch[0].copy()
        if not twin.accept(draft_id):
            break
        num_fed += 1
    twin.rollback(num_fed)
    return masks


def some_walk(rng: random.Random, twin: ReplayMatcher, matcher: GrammarMatcher, first_row: int) -> DraftWalk:
    """Committed tokens are allowed ones; drafts may be anything. The twin has accepted the committed ones."""
    committed = [token for token in (some_token(rng, twin) for _ in range(rng.randint(0, 3))) if twin.accept(token)]
    drafts: list[int] = []
    num_fed = 0
    for _ in range(rng.randint(0, 5)):
        drafts.append(some_token(rng, twin))
        num_fed += twin.accept(drafts[-1])
    twin.rollback(num_fed)
    return DraftWalk(matcher, committed, drafts, first_row)


def check_steps(seed: int, filler: BatchFiller, num_steps: int = 4) -> int:
    """Several steps of several outputs; how many rows were filled."""
    rng = random.Random(seed)
    twins = [make_twins(rng) for _ in range(6)]
    num_filled = 0
    for _ in range(num_steps):
        walks, first_row = [], rng.randint(0, 2)
        for matcher, twin in twins:
            walks.append(some_walk(rng, twin, matcher, first_row))
            first_row += 1 + len(walks[-1].draft_ids) + rng.randint(0, 1)
        expected: dict[int, np.ndarray] = {}  # type: ignore[type-arg]
        for walk, (_, twin) in zip(walks, twins, strict=True):
            expected |= expected_rows(twin, walk)
        bitmask = np.full((first_row + 1, WORDS), UNTOUCHED, np.int32)
        filled = filler.fill(walks, bitmask)
        assert not filled.failures
        assert np.flatnonzero(filled.is_filled).tolist() == sorted(expected), (seed, walks)
        for row, mask in expected.items():
            assert (bitmask[row] == mask).all(), (seed, row)
        for matcher, twin in twins:
            assert state_of(matcher) == state_of(twin), seed
        num_filled += len(expected)
    return num_filled
