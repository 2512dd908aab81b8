"""Placements: both tables agree, and what makes no sense is refused by name."""

from __future__ import annotations

import json
import logging
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from thalweg.eplb import Placement, Workload, redundant_slots
from thalweg.eplb.slots import initial_slots
from thalweg.interfaces import ConfigError

SLOTS = json.loads((Path(__file__).parent / "golden" / "slots.json").read_text())


def table(*layers: list[int]) -> np.ndarray:
    return np.array(layers, np.int32)


def test_redundant_slots_are_the_recorded_ones() -> None:
    for case in SLOTS["extra_experts"]:
        redundant = redundant_slots(case["routed"], case["minimum"], case["ep"])
        assert redundant == case["extra"]
        assert case["routed"] + redundant == case["physical"] == case["ep"] * case["per_rank"]


def test_initial_slots_are_the_recorded_ones() -> None:
    for case in SLOTS["initial_maps"]:
        slots = initial_slots(2, case["routed"], case["routed"] + case["extra"])
        assert slots.tolist() == [case["map"]] * 2


def test_a_rounded_number_of_redundant_slots_is_logged_with_its_layout(caplog: pytest.LogCaptureFixture) -> None:
    with caplog.at_level(logging.WARNING):
        assert redundant_slots(384, 1, 64, layout="backbone") == 64
        assert redundant_slots(384, 64, 64, layout="drafter") == 64
    assert [record.message for record in caplog.records] == [
        "backbone: 64 redundant slots instead of 1, so that 448 slots divide over 64 ranks"
    ]


def test_prefill_gets_four_redundant_slots_per_rank_and_decode_one() -> None:
    assert Workload.PREFILL.redundant_slots(8) == 32
    assert Workload.DECODE.redundant_slots(8) == 8


@pytest.mark.parametrize(
    ("arguments", "message"),
    [
        ((0, 1, 4), r"num_experts is 0; it must be an integer in 1\.\.65536"),
        ((8, -1, 4), r"minimum is -1; it must be an integer in 0\.\.65536"),
        ((8, 1, 0), r"num_ranks is 0; it must be an integer in 1\.\.65536"),
        ((8.0, 1, 4), r"num_experts is 8\.0; it must be an integer in 1"),
        ((8, None, 4), "minimum is None; it must be an integer in 0"),
        ((8, 1, True), "num_ranks is True; it must be an integer in 1"),
        ((8, 1, 10**12), r"num_ranks is 1000000000000; it must be an integer in 1\.\.65536"),
        ((8, 10**12, 4), r"minimum is 1000000000000; it must be an integer in 0\.\.65536"),
    ],
)
def test_redundant_slots_of_nonsense_are_refused(arguments: Any, message: str) -> None:
    with pytest.raises(ConfigError, match=message):
        redundant_slots(*arguments)


def test_copies_are_numbered_by_slot_or_in_the_given_order() -> None:
    held = table([1, 0, 1, 2, 0, 1])
    by_slot = Placement.from_slots(held, num_ranks=2, num_experts=3)
    assert by_slot.physical_of_logical.tolist() == [[[1, 4, -1, -1], [0, 2, 5, -1], [3, -1, -1, -1]]]
    assert by_slot.copies().tolist() == [[2, 3, 1]]
    ordered = Placement.from_slots(held, 2, 3, copy_order=table([5, 4, 3, 2, 1, 0]))
    assert ordered.physical_of_logical.tolist() == [[[4, 1, -1, -1], [5, 2, 0, -1], [3, -1, -1, -1]]]
    assert not ordered.equals(by_slot)
    assert ordered.equals(Placement.from_slots(held, 2, 3, copy_order=table([5, 4, 3, 2, 1, 0])))


def test_a_placement_knows_its_shape_and_cannot_be_changed() -> None:
    placement = Placement.initial(num_layers=3, num_experts=8, num_slots=12, num_ranks=4)
    shape = (placement.num_layers, placement.num_experts, placement.num_slots, placement.num_ranks)
    assert shape == (3, 8, 12, 4)
    assert placement.slots_per_rank == 3
    for array in (placement.logical_of_physical, placement.physical_of_logical):
        with pytest.raises(ValueError, match="read-only"):
            array[0, 0] = 1


def test_chosen_layers_are_taken_from_the_other_placement_and_the_rest_stay() -> None:
    old = Placement.initial(3, 4, 6, 2)
    new = Placement.from_slots(table(*[[3, 2, 1, 0, 3, 2]] * 3), 2, 4)
    mixed = old.with_layers(new, np.array([False, True, False]))
    expected = Placement.from_slots(table([0, 1, 2, 3, 0, 1], [3, 2, 1, 0, 3, 2], [0, 1, 2, 3, 0, 1]), 2, 4)
    assert mixed.equals(expected)
    with pytest.raises(ConfigError, match="num_ranks of one placement is 2 and of the other 3"):
        old.with_layers(Placement.initial(3, 4, 6, 3), np.array([True, True, True]))
    for chosen in (np.array([True]), np.array([0, 1, 0])):
        with pytest.raises(ConfigError, match=r"chosen is .*; it must be an array of bool, \[3\]"):
            old.with_layers(new, chosen)


@pytest.mark.parametrize(
    ("held", "num_ranks", "num_experts", "message"),
    [
        (table([0, 1, 2]), 1, 4, "num_slots is 3; 4 experts need at least as many"),
        (table([0, 1, 2, 0]), 3, 3, "num_slots is 4; it must be a multiple of num_ranks, 3"),
        (table([0, 1, 2, 0]), 0, 3, "num_ranks is 0"),
        (table([0, 1, 2, 3]), 2, 3, r"experts 0 to 3; they must be in 0\.\.2"),
        (table([0, 1, 2, -1]), 2, 3, r"experts -1 to 2; they must be in 0\.\.2"),
        (table([0, 1, 2, 0], [0, 1, 1, 0]), 2, 3, "no expert 2 in layer 1"),
        (np.zeros((1, 4)), 2, 1, "float64 of shape"),
        (np.zeros(4, np.int32), 2, 1, r"int32 of shape \(4,\)"),
        (np.zeros((0, 4), np.int32), 2, 1, r"int32 of shape \(0, 4\)"),
    ],
)
def test_slots_that_are_no_placement_are_refused(
    held: np.ndarray, num_ranks: int, num_experts: int, message: str
) -> None:
    with pytest.raises(ConfigError, match=message):
        Placement.from_slots(held, num_ranks, num_experts)


@pytest.mark.parametrize("order", [table([0, 1, 2, 2]), table([0, 1, 2]), table([1, 2, 3, 4])])
def test_an_order_of_copies_that_is_no_permutation_is_refused(order: np.ndarray) -> None:
    with pytest.raises(ConfigError, match=r"copy_order is .*, no permutation of the slots in every layer"):
        Placement.from_slots(table([0, 1, 2, 0]), 2, 3, copy_order=order)


def test_an_initial_placement_needs_a_layer() -> None:
    with pytest.raises(ConfigError, match="num_layers is 0"):
        Placement.initial(0, 4, 4, 2)
