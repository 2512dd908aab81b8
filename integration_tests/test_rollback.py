"""Rejected drafts leave nothing behind: caches and logits equal the run token by token, byte for byte."""

from __future__ import annotations

from pathlib import Path

import numpy as np
import pytest
import torch

from rollback_testing.bench import Bench
from rollback_testing.history import History
from rollback_testing.plans import DecodeRow
from rollback_testing.rounds import Case, all_outcomes, random_pattern, random_text, run_cases
from thalweg.model import Model

TINY_A = Path(__file__).parents[1] / "packages" / "model" / "tests" / "golden" / "tiny_a"
LENGTH = 176


@pytest.fixture(scope="module")
def model() -> Model:
    return Model.load(TINY_A)


@pytest.fixture(scope="module")
def bench(model: Model) -> Bench:
    return Bench(model, draft_length=3)


@pytest.fixture(scope="module")
def history(bench: Bench) -> History:
    return History(bench, random_text(1, bench.model.config.vocab_size, LENGTH))


def test_every_outcome_at_every_phase(bench: Bench, history: History) -> None:
    random = np.random.default_rng(1)
    starts = [*range(1, 48), *range(118, 136)]
    cases = [
        Case(history, start, [outcome, (3, int(random.integers(4))), (3, 3)], seed=start, is_async=bool(start % 2))
        for start in starts
        for outcome in all_outcomes(3)
    ]
    assert run_cases(bench, cases) == 3 * len(cases)


def test_random_rounds_in_one_batch(bench: Bench, history: History) -> None:
    random = np.random.default_rng(2)
    cases = [
        Case(history, int(random.integers(1, 90)), random_pattern(random, 3, 20), seed, is_async=bool(seed % 3))
        for seed in range(40)
    ]
    run_cases(bench, cases)


@pytest.mark.parametrize("ring_drafts", [2, 1])
def test_rings_that_are_too_short_are_found_out(model: Model, ring_drafts: int) -> None:
    """Made for 2 drafts, the compressor ring lacks a position for 3; made for 1, the window ring lacks one, too."""
    bench = Bench(model, draft_length=3, ring_drafts=ring_drafts)
    history = History(bench, random_text(1, model.config.vocab_size, 40))
    random = np.random.default_rng(3)
    cases = [Case(history, start, random_pattern(random, 3, 4), seed=start) for start in range(1, 20)]
    with pytest.raises(AssertionError, match="differ in round|differ after round"):
        run_cases(bench, cases)


def test_poison_in_anything_readable_shows_in_the_next_logits(bench: Bench, history: History) -> None:
    cached, batch_size = 131, 90
    parts = list(bench.readable.parts_of_next(cached).items())
    assert len(parts) == 7 * 15 + 1 + 4, "windows of seven layers, an open row, two streams with their index keys"
    for begin in range(0, len(parts), batch_size):
        lanes = []
        for _, (slot, blocks) in parts[begin : begin + batch_size]:
            readable = bench.readable.next(cached)
            lanes.append(bench.lane(history.text, history.memory[cached], (readable[0] & ~slot, readable[1] & ~blocks)))
        logits = bench.decode([DecodeRow(lane, cached, np.zeros(3, np.int32), 0) for lane in lanes])
        for (name, _), values in zip(parts[begin:], logits, strict=False):
            assert not torch.equal(values[0], history.logits[cached]), f"nobody reads {name}"
        bench.free(lanes)
