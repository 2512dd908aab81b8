"""Rejected drafts leave nothing behind: caches, logits and drafts equal the run token by token, byte for byte.

Everything that a step may not read is poisoned before it. Sixty random models go through the same in the soak
runs.
"""

from __future__ import annotations

import numpy as np
import pytest
import torch

from rollback_testing.bench import Bench
from rollback_testing.cases import Case, all_outcomes, random_outcomes, random_text, run_cases
from rollback_testing.history import record_histories
from rollback_testing.lives import check_random_model, live_through
from rollback_testing.models import tiny_a, tiny_bench, tiny_history, tiny_late_history
from rollback_testing.plans import DecodeRow


def test_every_outcome_at_every_phase_of_rings_pairs_and_blocks() -> None:
    """Rings of 20 and 5 positions; the first starts see less than a window, the last cross into the second block."""
    random = np.random.default_rng(1)
    starts = [(tiny_history(), start) for start in range(1, 44)]
    starts += [(tiny_late_history(), start) for start in range(121, 133)]
    cases = [
        Case(history, start, [outcome, (3, int(random.integers(4)))], seed=start, is_async=bool(start % 2))
        for history, start in starts
        for outcome in all_outcomes(3)
    ]
    assert run_cases(tiny_bench(), cases) == 2 * len(cases)


def test_random_outcomes_for_many_rounds() -> None:
    random = np.random.default_rng(2)
    cases = [
        Case(tiny_history(), int(random.integers(1, 23)), random_outcomes(random, 3, 10), seed, is_async=bool(seed % 3))
        for seed in range(40)
    ]
    run_cases(tiny_bench(), cases)


def test_chunks_forks_and_recomputation_on_memory_that_others_left() -> None:
    seen = live_through(tiny_bench(), [tiny_history()], seed=1, steps=40)
    assert min(seen["chunks"], seen["rounds"], seen["forked"], seen["preempted"]) >= 3, seen


@pytest.mark.parametrize("seed", [1, 3])
def test_random_models_live_through_the_same(seed: int) -> None:
    seen = check_random_model(seed, steps=20, lengths=(36, 52))
    assert min(seen["chunks"], seen["rounds"]) >= 3, seen


@pytest.mark.parametrize("ring_drafts", [2, 1])
def test_rings_that_are_too_short_are_found_out(ring_drafts: int) -> None:
    """Made for 2 drafts, the compressor ring lacks a position for 3; made for 1, the window ring lacks one, too."""
    model, _ = tiny_a()
    bench = Bench(model, None, draft_length=3, ring_drafts=ring_drafts)
    (history,) = record_histories(bench, [random_text(1, model.config.vocab_size, 40)])
    random = np.random.default_rng(3)
    cases = [Case(history, start, random_outcomes(random, 3, 4), seed=start) for start in range(1, 20)]
    with pytest.raises(AssertionError, match=r"^(logits \d of|blocks of|slot of) case"):
        run_cases(bench, cases)


def test_poison_in_anything_readable_shows_after_one_step() -> None:
    """In the logits, or in what the step leaves behind: of what it writes, poison becomes zeros."""
    bench, history, cached, batch_size = tiny_bench(), tiny_late_history(), 131, 90
    parts = list(bench.readable.parts_of_next(cached).items())
    assert len(parts) == 7 * 15 + 1 + 4, "windows of seven layers, an open row, two streams with their index keys"
    slot, blocks = bench.readable.next(cached)
    written = bench.readable.written(cached, 1)
    for begin in range(0, len(parts), batch_size):
        batch = parts[begin : begin + batch_size]
        masks = [(slot & ~in_slot, blocks & ~in_blocks) for _, (in_slot, in_blocks) in batch]
        lanes = [bench.lane(history.text, history.memory[cached], mask) for mask in masks]
        logits = bench.decode([DecodeRow(lane, cached, np.zeros(3, np.int32), 0) for lane in lanes])
        for (name, _), values, lane in zip(batch, logits, lanes, strict=True):
            left = zip(bench.memory(lane), history.memory[cached + 1], written, strict=True)
            is_hidden = all(torch.equal(now[mask], wanted[mask]) for now, wanted, mask in left)
            assert not (is_hidden and torch.equal(values[0], history.logits[cached])), f"nobody reads {name}"
            bench.free(lane)
