"""Which copy a token goes to: as recorded, near first, or as a split says."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from thalweg.eplb.copies import choose_copies, follow_split, prefer_local_copies
from thalweg.interfaces import ConfigError

CASES = json.loads((Path(__file__).parent / "golden" / "replica_choice.json").read_text())


@pytest.mark.parametrize("case", CASES, ids=lambda case: f"rank{case['ep_rank']}")
def test_rows_go_to_the_recorded_copies(case: dict[str, Any]) -> None:
    counts = np.array(case["counts"])
    copy_is_slot = np.broadcast_to(np.arange(counts.max()), (len(counts), counts.max()))
    logical = np.broadcast_to(np.arange(len(counts)), (max(case["token_rows"]) + 1, len(counts)))
    slots = choose_copies(logical, copy_is_slot, counts, case["ep_rank"])
    assert slots[case["token_rows"]].tolist() == case["index"]


def test_masked_selections_stay_masked() -> None:
    slots = choose_copies(np.array([[1, -1], [-1, 0]]), np.array([[0, 2], [1, -1]]), np.array([2, 1]), rank=1)
    assert slots.tolist() == [[1, -1], [-1, 0]]


def test_a_rank_prefers_its_own_copy() -> None:
    logical_of_slot = np.array([0, 1, 0, 2])
    slots = np.array([[0, 1, -1], [2, 3, -1]], np.int32)
    logical = np.array([[0, 1, -1], [0, 2, -1]])
    assert prefer_local_copies(logical, slots, logical_of_slot, 1, 2).tolist() == [[2, 1, -1], [2, 3, -1]]
    assert prefer_local_copies(logical, slots, logical_of_slot, 0, 2).tolist() == [[0, 1, -1], [0, 3, -1]]


def test_every_slot_gets_the_tokens_of_its_share() -> None:
    rng = np.random.default_rng(0)
    slots_of_logical = np.array([[0, 4, 5], [1, -1, -1], [2, 3, -1]])
    ranks = [np.where(rng.random((50, 2)) < 0.1, -1, rng.integers(0, 3, (50, 2))) for _ in range(4)]
    counts = np.array([[(rows == expert).sum() for expert in range(3)] for rows in ranks])
    total = counts.sum(axis=0)
    tokens_of_slot = np.array([total[0] - 30, total[1], total[2] - 7, 7, 0, 30])
    before = np.cumsum(counts, axis=0) - counts
    received = np.zeros(6, int)
    for rows, first in zip(ranks, before, strict=True):
        slots = follow_split(rows, slots_of_logical, tokens_of_slot, first)
        assert ((slots < 0) == (rows < 0)).all()
        assert np.array([0, 1, 2, 2, 0, 0])[slots[slots >= 0]].tolist() == rows[rows >= 0].tolist()
        received += np.bincount(slots[slots >= 0], minlength=6)
    assert received.tolist() == tokens_of_slot.tolist()


def test_more_tokens_than_were_split_are_refused() -> None:
    with pytest.raises(ConfigError, match="expert 1 has more tokens than the 2 of its split"):
        follow_split(np.array([[1], [1], [1]]), np.array([[0], [1]]), np.array([5, 2]), np.array([0, 0]))
