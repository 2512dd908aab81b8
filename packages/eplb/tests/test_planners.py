"""What every planner owes: a valid placement, the same one every time, and clear words about bad input."""

from __future__ import annotations

from typing import Any

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from thalweg.eplb import PLANNERS, GreedyPlanner, Placement, ReferencePlanner, imbalance, plan, rank_loads
from thalweg.interfaces import ConfigError

TOY = np.array([600, 400, 300, 200, 150, 150, 100, 100]).reshape(1, 1, 8)


@st.composite
def problems(draw: st.DrawFn) -> tuple[np.ndarray, int, int]:
    """A history, slots and ranks: 8-512 experts, none to three redundant slots per rank, sparse and zero counts."""
    num_ranks = draw(st.sampled_from([1, 2, 3, 4, 8, 16, 64, 128]))
    num_experts = draw(st.integers(8, 512))
    redundant = -num_experts % num_ranks + num_ranks * draw(st.integers(0, 2))
    num_steps, num_layers = draw(st.integers(1, 5)), draw(st.integers(1, 2))
    rng = np.random.default_rng(draw(st.integers(0, 2**32 - 1)))
    counts = rng.poisson(draw(st.sampled_from([0.0, 0.05, 3.0, 1e4])), (num_steps, num_layers, num_experts))
    return counts * (rng.random(counts.shape) < draw(st.sampled_from([0.1, 1.0]))), num_experts + redundant, num_ranks


def check_tables(placement: Placement) -> None:
    copies, table, held = placement.copies(), placement.physical_of_logical, placement.logical_of_physical
    assert copies.min() >= 1
    assert (copies.sum(axis=1) == placement.num_slots).all()
    for layer in range(placement.num_layers):
        for expert in range(placement.num_experts):
            slots = table[layer, expert]
            used = slots[: copies[layer, expert]]
            assert (slots[len(used) :] == -1).all()
            assert len(set(used.tolist())) == len(used)
            assert (held[layer, used] == expert).all()


def most_on_a_rank(placement: Placement) -> int:
    """The most copies of one expert that a rank holds."""
    rows = placement.logical_of_physical.reshape(-1, placement.slots_per_rank)
    return max(int(np.bincount(row).max()) for row in rows)


@pytest.mark.parametrize("name", sorted(PLANNERS))
@settings(max_examples=40, deadline=None, derandomize=True)
@given(problem=problems())
def test_plans_are_valid_and_repeat(name: str, problem: tuple[np.ndarray, int, int]) -> None:
    history, num_slots, num_ranks = problem
    placement = plan(history, num_slots, num_ranks, planner=name)
    check_tables(placement)
    assert plan(history.copy(), num_slots, num_ranks, planner=name, current=None).equals(placement)
    assert placement.logical_of_physical.shape == (history.shape[1], num_slots)
    assert imbalance(rank_loads(history, placement)) >= 1 - 1e-9
    initial = Placement.initial(history.shape[1], history.shape[2], num_slots, num_ranks)
    from_initial = plan(history, num_slots, num_ranks, planner=name, current=initial)
    check_tables(from_initial)
    if name == "search" and placement.slots_per_rank <= placement.num_experts:
        assert most_on_a_rank(placement) == most_on_a_rank(from_initial) == 1


def naive_reference(counts: np.ndarray, num_slots: int, num_ranks: int) -> np.ndarray:
    """The reference for one layer, as its rules are written: every score anew."""
    counts = counts.astype(np.float32)
    num_experts = counts.shape[1]
    tie_break = np.float32(1e-4) * np.arange(num_experts, dtype=np.float32)
    copies = np.ones(num_experts, np.float32)
    experts = list(range(num_experts))
    for _ in range(num_slots - num_experts):
        gains = np.zeros(num_experts)
        for row in counts:
            loads = (row + tie_break) / copies
            hottest, peak = int(loads.argmax()), loads.max()
            loads[hottest] = row[hottest] / (copies[hottest] + 1)
            gains[hottest] += float(peak) - float(loads.max())
        experts.append(int(gains.argmax()))
        copies[experts[-1]] += 1
    slots_per_rank = num_slots // num_ranks
    if slots_per_rank == 1:
        return np.array(experts)
    loads = counts[:, experts] / copies[experts]
    ranks, held = np.zeros((num_ranks, len(counts)), np.float32), [[] for _ in range(num_ranks)]
    for copy in np.argsort(-loads.sum(axis=0, dtype=np.float64), kind="stable"):
        room = [rank for rank in range(num_ranks) if len(held[rank]) < slots_per_rank]
        scores = [np.maximum(ranks.max(0), ranks[rank] + loads[:, copy]).sum(dtype=np.float64) for rank in room]
        best = room[int(np.argmin(scores))]
        held[best].append(experts[copy])
        ranks[best] += loads[:, copy]
    return np.concatenate(held)


@pytest.mark.parametrize("seed", range(12))
def test_the_reference_is_what_its_rules_say(seed: int) -> None:
    rng = np.random.default_rng(seed)
    num_ranks, num_experts = int(rng.integers(1, 9)), int(rng.integers(8, 40))
    num_slots = num_experts + -num_experts % num_ranks + num_ranks * int(rng.integers(0, 3))
    counts = rng.poisson(rng.gamma(0.7, 200.0, num_experts), (int(rng.integers(1, 20)), num_experts))
    placement = plan(counts[:, None], num_slots, num_ranks, planner="reference")
    np.testing.assert_array_equal(placement.logical_of_physical[0], naive_reference(counts, num_slots, num_ranks))


def test_the_toy_example_goes_from_two_to_one() -> None:
    assert imbalance(rank_loads(TOY, Placement.initial(1, 8, 8, 4))) == 2.0
    for name in ("greedy", "reference"):
        assert imbalance(rank_loads(TOY, plan(TOY, 12, 4, planner=name))) == pytest.approx(1.0)


def test_the_reference_keeps_apart_what_is_hot_at_the_same_time_and_greedy_does_not() -> None:
    history = np.array([[[100, 100, 1, 1]], [[1, 1, 100, 100]]])
    assert imbalance(rank_loads(history, plan(history, 4, 2, planner=ReferencePlanner()))) == pytest.approx(1.0)
    history = np.array([[[100, 0, 100, 0]], [[0, 100, 0, 100]]])  # all equal in the mean
    assert imbalance(rank_loads(history, plan(history, 4, 2, planner=GreedyPlanner()))) == pytest.approx(2.0)
    assert imbalance(rank_loads(history, plan(history, 4, 2, planner=ReferencePlanner()))) == pytest.approx(1.0)


def test_greedy_copies_the_largest_mean_load_per_copy() -> None:
    history = np.array([[[90, 10, 50, 10]], [[90, 10, 50, 10]]])
    assert plan(history, 6, 2, planner="greedy").copies().tolist() == [[2, 1, 2, 1]]
    one_each = plan(history, 6, 6, planner="greedy")
    assert one_each.logical_of_physical.tolist() == [[0, 1, 2, 3, 0, 2]]


@pytest.mark.parametrize(
    "dtype", [np.float16, np.uint16, np.int32, np.int64, np.float32, np.float64, ">u2", ">i4", ">f8"]
)
def test_counts_of_any_type_give_the_same_plan(dtype: Any) -> None:
    for name in sorted(PLANNERS):
        assert plan(TOY.astype(dtype), 12, 4, planner=name).equals(plan(TOY, 12, 4, planner=name))


BAD = [
    (np.full((1, 1, 8), -1), {}, "history holds the count -1; counts must be >= 0"),
    (np.full((1, 1, 8), np.nan), {}, "a count that is not finite"),
    (np.full((1, 1, 8), np.inf), {}, "a count that is not finite"),
    (np.zeros((1, 8), int), {}, r"shape \(1, 8\); it must be \[steps, layers, experts\]"),
    (np.zeros((0, 1, 8), int), {}, r"shape \(0, 1, 8\)"),
    (np.zeros((1, 1, 8), complex), {}, "history is of complex128"),
    ([[[1] * 8]], {}, "history is of list"),
    (TOY, {"num_slots": 4}, "num_slots is 4; 8 experts need at least as many"),
    (TOY, {"num_slots": 10}, "num_slots is 10; it must be a multiple of num_ranks, 4"),
    (TOY, {"num_ranks": 0}, r"num_ranks is 0; it must be an integer in 1\.\.65536"),
    (TOY, {"num_ranks": 4.0}, r"num_ranks is 4\.0; it must be an integer"),
    (TOY, {"num_slots": None}, "num_slots is None; it must be an integer"),
    (TOY, {"current": [0, 1]}, r"current is \[0, 1\]; it must be a thalweg\.eplb\.Placement"),
    (TOY, {"planner": 7}, "planner is 7; it must be a Planner or the name of one"),
    (TOY, {"planner": GreedyPlanner}, "planner is .*GreedyPlanner.*; it must be a Planner or the name of one"),
    (TOY, {"current": Placement.initial(1, 8, 8, 4)}, r"current has .* \(1, 8, 8, 4\); asked for is \(1, 8, 12, 4\)"),
    (TOY, {"current": Placement.initial(2, 8, 12, 4)}, r"current has .* \(2, 8, 12, 4\)"),
    (TOY, {"num_slots": 2**40}, r"num_slots is 1099511627776; it must be an integer in 1\.\.65536"),
    (TOY, {"num_slots": 2**17, "num_ranks": 2**17}, r"num_slots is 131072; it must be an integer in 1\.\.65536"),
    (
        np.full((1, 1, 8), 3e38, np.float32),
        {},
        r"history holds the count 3.*e\+38; counts may be at most 1\.26765e\+30",
    ),
    (np.full((1, 1, 8), 1e308), {}, r"history holds the count 1e\+308; counts may be at most 1\.26765e\+30"),
    (TOY, {"planner": "best"}, "planner is 'best'; it must be one of greedy, reference"),
]


@pytest.mark.parametrize(("history", "changes", "message"), BAD, ids=[case[2][:30] for case in BAD])
def test_bad_input_is_refused_by_name(history: Any, changes: dict[str, Any], message: str) -> None:
    with pytest.raises(ConfigError, match=message):
        plan(history, **{"num_slots": 12, "num_ranks": 4} | changes)


def test_a_history_without_tokens_still_gives_a_placement() -> None:
    for name in sorted(PLANNERS):
        placement = plan(np.zeros((3, 2, 8), np.int64), 12, 4, planner=name)
        assert imbalance(rank_loads(np.zeros((3, 2, 8)), placement)) == 1.0
