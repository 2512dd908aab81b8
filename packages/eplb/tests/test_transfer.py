"""Transfers: the recorded pairings, content after the moves, fewest bytes, no conflicts."""

from __future__ import annotations

import json
from collections import Counter
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from thalweg.eplb.rounds import conflict_free_rounds
from thalweg.eplb.senders import deal, deal_senders
from thalweg.eplb.transfer import LayerTransfers, keep_in_place, plan_transfers
from thalweg.interfaces import ConfigError

GOLDEN = Path(__file__).parent / "golden"


def load(name: str) -> Any:
    return json.loads((GOLDEN / name).read_text())


@st.composite
def two_placements(draw: st.DrawFn) -> tuple[np.ndarray, np.ndarray, int]:
    """Old and new slots of one layer, each with every expert, and ranks."""
    num_ranks, slots_per_rank = draw(st.integers(1, 8)), draw(st.integers(1, 6))
    num_slots = num_ranks * slots_per_rank
    num_experts = draw(st.integers(1, num_slots))
    rng = np.random.default_rng(draw(st.integers(0, 2**32 - 1)))
    base = np.concatenate([np.arange(num_experts), rng.integers(0, num_experts, num_slots - num_experts)])
    return rng.permutation(base), rng.permutation(base), num_ranks


def run(plan: LayerTransfers, old: np.ndarray, num_ranks: int) -> np.ndarray:
    """The content of all slots after the moves, when a slot's content is its expert's number."""
    before = old.reshape(num_ranks, -1)
    after = before.copy()
    for rank, copies in enumerate(plan.local_copies):
        for source, target in copies:
            after[rank, target] = before[rank, source]
    for moves in plan.rounds:
        for move in moves:
            assert before[move.sender, move.sender_slot] == move.expert
            after[move.receiver, move.receiver_slot] = move.expert
    for rank, copies in enumerate(plan.duplicates):
        for source, target in copies:
            after[rank, target] = after[rank, source]
    return after.reshape(-1)


@pytest.mark.parametrize("case", load("sender_pairing.json"), ids=lambda case: f"{case['senders']}-{case['receivers']}")
def test_receivers_are_dealt_to_senders_as_recorded(case: dict[str, Any]) -> None:
    assert deal(case["senders"], case["receivers"]) == case["sender_of"]


@pytest.mark.parametrize("case", load("shuffle_plans.json"), ids=lambda case: case["name"])
def test_moves_are_the_recorded_ones(case: dict[str, Any]) -> None:
    old, new = np.array(case["origin"]), np.array(case["current"])
    num_ranks = len(old) // case["slots_per_rank"]
    plan = plan_transfers(old, new, num_ranks, pairing=deal_senders)
    moves = [move for moves in plan.rounds for move in moves]
    for expected in case["plan"]:
        rank = expected["rank"]
        received = [(m.expert, m.receiver_slot, m.sender, m.sender_slot) for m in moves if m.receiver == rank]
        sent = [(m.expert, m.sender_slot, m.receiver) for m in moves if m.sender == rank]
        assert [list(copy) for copy in plan.local_copies[rank]] == expected["local_copies"]
        assert sorted(map(list, received)) == expected["recvs_expert_slot_src_srcslot"]
        assert sorted(map(list, sent)) == sorted(expected["sends_expert_slot_dst"])


@settings(max_examples=50, deadline=None)
@given(two_placements())
def test_moves_lead_to_the_new_placement_with_the_fewest_transfers(case: tuple[np.ndarray, np.ndarray, int]) -> None:
    old, new, num_ranks = case
    plan = plan_transfers(old, new, num_ranks)
    assert run(plan, old, num_ranks).tolist() == new.tolist()
    rows = list(zip(old.reshape(num_ranks, -1).tolist(), new.reshape(num_ranks, -1).tolist(), strict=True))
    assert plan.num_transfers == sum(len(set(new_row) - set(old_row)) for old_row, new_row in rows)
    for rank, (old_row, new_row) in enumerate(rows):
        changed = [slot for slot, expert in enumerate(new_row) if expert != old_row[slot]]
        assert plan.changed_slots(rank) == changed


@settings(max_examples=50, deadline=None)
@given(two_placements())
def test_no_rank_sends_or_receives_twice_in_a_round(case: tuple[np.ndarray, np.ndarray, int]) -> None:
    plan = plan_transfers(*case)
    for moves in plan.rounds:
        assert len({move.sender for move in moves}) == len(moves)
        assert len({move.receiver for move in moves}) == len(moves)


@settings(max_examples=50, deadline=None)
@given(st.lists(st.tuples(st.integers(0, 7), st.integers(0, 7)), max_size=60))
def test_there_are_as_few_rounds_as_the_busiest_rank_allows(pairs: list[tuple[int, int]]) -> None:
    rounds = conflict_free_rounds(pairs)
    degrees = [Counter(pair[side] for pair in pairs) for side in (0, 1)]
    assert len(set(rounds)) == max((max(degree.values()) for degree in degrees if degree), default=0)
    for side in (0, 1):
        ends = [(pair[side], number) for pair, number in zip(pairs, rounds, strict=True)]
        assert len(set(ends)) == len(ends)


@settings(max_examples=50, deadline=None)
@given(two_placements())
def test_experts_that_stay_on_a_rank_keep_their_slots(case: tuple[np.ndarray, np.ndarray, int]) -> None:
    old, new, num_ranks = case
    kept = keep_in_place(old, new, num_ranks)
    for old_row, new_row, row in zip(*(slots.reshape(num_ranks, -1) for slots in (old, new, kept)), strict=True):
        assert sorted(row) == sorted(new_row)
        staying = sum((Counter(old_row.tolist()) & Counter(new_row.tolist())).values())
        assert (row == old_row).sum() == staying


def test_bad_placements_are_refused() -> None:
    with pytest.raises(ConfigError, match=r"old is \(4,\) and new \(2,\)"):
        plan_transfers(np.arange(4), np.arange(2), 2)
    with pytest.raises(ConfigError, match="4 slots do not divide over 3 ranks"):
        plan_transfers(np.arange(4), np.arange(4), 3)
    with pytest.raises(ConfigError, match="new is float64; it must be an array that has integers >= 0"):
        plan_transfers(np.arange(4), np.arange(4.0), 2)
    with pytest.raises(ConfigError, match=r"old is \(4,\) and new \(3,\)"):
        keep_in_place(np.arange(4), np.arange(3), 2)
    with pytest.raises(ConfigError, match=r"experts \[7\], which nobody holds"):
        plan_transfers(np.arange(4), np.array([0, 1, 2, 7]), 2)
