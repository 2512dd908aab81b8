"""Which confidences decide what a step verifies: how much, those of two rounds before; whose, those of the last round.

A draft's fate may not depend on the draft itself, and the confidences behind it do.
"""

from __future__ import annotations

from bisect import bisect_left
from collections.abc import Callable, Iterator
from dataclasses import dataclass, replace

import numpy as np
import pytest
import torch
from numpy.typing import NDArray

from drafts_testing import drafters
from drafts_testing.bench import Bench, Setup
from drafts_testing.budgets import Peeking
from drafts_testing.tables import Memory, Tables
from thalweg.dspark import ThroughputBudget
from thalweg.interfaces import DraftRows, SamplingParams

TARGET = Tables.random(12, seed=3, memory=Memory.EVERYTHING)
DRAFTS, SEQUENCES, NUM_STEPS = 3, 12, 30
ARRIVALS = {0: range(6)} | {3 * index: [5 + index] for index in range(1, SEQUENCES - 5)}
"""By step."""
CURVE = tuple((size, 10.0 + size) for size in (1, 4, *range(8, 41, 2)))
"""Its largest size does not hold all drafts of all sequences."""
SETUP = Setup(
    target=TARGET,
    drafts=TARGET.with_noise(1, 0.5),
    draft_length=DRAFTS,
    confide=drafters.random,
    verification="coupled",
    step_times=CURVE,
    options={"max_num_seqs": SEQUENCES, "prefill_interval_all": 2, "max_model_len": 128},
)
MODES = {
    "in place": SETUP,
    "overlapping": replace(SETUP, is_async=True),
    "in place, in Python": replace(SETUP, is_native=False),
    "overlapping, in Python": replace(SETUP, is_async=True, is_native=False),
}
Change = Callable[[int, torch.Tensor], torch.Tensor]
"""(round, confidences [N, G]) -> confidences"""


@dataclass(frozen=True)
class Round:
    """One decode step: whom it served, what it verified, and what its drafter said of the drafts for the next one."""

    sequence_ids: list[int]
    lengths: NDArray[np.int32]
    confidences: NDArray[np.float32]


def rounds(setup: Setup, change: Change = lambda number, values: values) -> list[Round]:
    """The decode steps of requests that come one after the other, before any of them ends."""
    bench = Bench(setup)
    bench.keep_records()
    assert bench.drafter is not None
    said: list[tuple[list[int], NDArray[np.float32]]] = []
    propose = bench.drafter.propose

    def changed(rows: DraftRows, sampler: object) -> tuple[torch.Tensor, torch.Tensor]:
        draft_ids, confidences = propose(rows, sampler)  # type: ignore[arg-type]
        confidences = change(len(said), confidences)
        said.append((rows.sequence_ids.tolist(), confidences.numpy().copy()))
        return draft_ids, confidences

    bench.drafter.propose = changed  # type: ignore[method-assign]
    params = SamplingParams(temperature=1.0, max_tokens=100, ignore_eos=True)
    with bench.engine:
        for step in range(NUM_STEPS):
            for number in ARRIVALS.get(step, ()):
                bench.engine.add_request(str(number), [number], replace(params, seed=number))
            bench.engine.step()
        bench.engine.flush()
        assert bench.engine.failure is None, bench.engine.failure
    decodes = [record for record in bench.records if not record.plan.token_ids.size and record.plan.sequence_ids.size]
    assert len(decodes) == len(said) > NUM_STEPS / 2
    result = []
    for record, (sequence_ids, confidences) in zip(decodes, said, strict=True):
        lengths = record.outcome.num_verified
        assert record.plan.sequence_ids.tolist() == sequence_ids
        assert lengths.sum() == record.plan.query_lengths.sum() == record.plan.num_batched_tokens
        assert lengths.min() >= 1
        assert lengths.max() <= 1 + DRAFTS
        result.append(Round(sequence_ids, lengths, confidences))
    return result


def survival(confidences: NDArray[np.float32]) -> NDArray[np.float32]:
    return np.multiply.accumulate(confidences, dtype=np.float32)


def known_survival(history: list[Round]) -> Iterator[tuple[NDArray[np.float32], NDArray[np.float32]]]:
    """Of each round after the first ones: what its budget and its split may know, [N, G] each."""
    spoken: dict[int, list[NDArray[np.float32]]] = {}
    for step in history:
        budget, split = [], []
        for sequence in step.sequence_ids:
            said = spoken.get(sequence, [])
            # Placeholders are worth nothing; drafts whose round before told nothing count as certain.
            split.append(said[-1] if said else np.zeros(DRAFTS, np.float32))
            budget.append(said[-2] if len(said) > 1 else np.full(DRAFTS, float(len(said)), np.float32))
        yield np.stack(budget), np.stack(split)
        for sequence, confidences in zip(step.sequence_ids, step.confidences, strict=True):
            spoken.setdefault(sequence, []).append(survival(confidences))


def best_total(budget: NDArray[np.float32]) -> int:
    """The fewest query tokens with the most expected tokens per millisecond, one total after the other."""
    sizes = [size for size, _ in CURVE]
    rates = sorted(budget.reshape(-1).tolist(), reverse=True)
    expected, best, best_value = np.float32(len(budget)), 0, -1.0
    for total in range(len(budget), min(len(budget) * (1 + DRAFTS), sizes[-1]) + 1):
        if total > len(budget):
            expected = np.float32(expected + np.float32(rates[total - len(budget) - 1]))
        value = float(expected) / CURVE[bisect_left(sizes, total)][1]
        if value > best_value:
            best, best_value = total, value
    return best


def shares(total: int, split: NDArray[np.float32]) -> list[int]:
    """Verify lengths: the likeliest drafts, of equals those of the earlier row, then of the earlier place."""
    places = [(-rate, row, place) for row, rates in enumerate(split.tolist()) for place, rate in enumerate(rates)]
    lengths = [1] * len(split)
    for _, row, _ in sorted(places)[: total - len(split)]:
        lengths[row] += 1
    return lengths


def assert_follows_the_rule(history: list[Round]) -> None:
    for step, (budget, split) in zip(history, known_survival(history), strict=True):
        assert step.lengths.sum() == best_total(budget)
        assert step.lengths.tolist() == shares(int(step.lengths.sum()), split)


@pytest.mark.parametrize("mode", MODES)
def test_the_budget_knows_two_rounds_before_and_the_split_one(mode: str) -> None:
    history = rounds(MODES[mode])
    assert_follows_the_rule(history)
    assert len({int(step.lengths.sum()) for step in history}) > 3
    assert any(np.ptp(step.lengths) == DRAFTS for step in history)
    assert max(int(step.lengths.sum()) for step in history) <= CURVE[-1][0]


@pytest.mark.parametrize("mode", MODES)
def test_what_a_round_says_decides_neither_itself_nor_how_much_the_next_verifies(mode: str) -> None:
    plain = rounds(MODES[mode])
    next_splits = totals_after_next = 0
    for changed_round in range(2, len(plain) - 2, 5):

        def change(number: int, values: torch.Tensor, changed_round: int = changed_round) -> torch.Tensor:
            return 1 - values if number == changed_round else values

        other = rounds(MODES[mode], change)
        for mine, theirs in zip(plain[: changed_round + 1], other, strict=False):
            assert mine.lengths.tolist() == theirs.lengths.tolist()
        mine, theirs = plain[changed_round + 1], other[changed_round + 1]
        assert mine.sequence_ids == theirs.sequence_ids
        assert mine.lengths.sum() == theirs.lengths.sum()
        next_splits += mine.lengths.tolist() != theirs.lengths.tolist()
        totals_after_next += plain[changed_round + 2].lengths.sum() != other[changed_round + 2].lengths.sum()
    assert next_splits
    assert totals_after_next


@pytest.mark.parametrize("is_async", [False, True])
def test_a_budget_that_looks_a_round_further_is_seen(is_async: bool) -> None:
    peeking = replace(SETUP, is_async=is_async, budget=lambda: Peeking(ThroughputBudget()))
    history = rounds(peeking)
    with pytest.raises(AssertionError):
        assert_follows_the_rule(history)
