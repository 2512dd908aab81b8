"""What makes no sense is refused by name, whatever it is: types, shapes, limits and numbers that are none."""

from __future__ import annotations

from typing import Any

import numpy as np
import pytest

from thalweg.eplb import (
    BalanceMonitor,
    CountingWindow,
    GreedyPlanner,
    Placement,
    ReferencePlanner,
    ScheduleConfig,
    StepSplit,
    choose_copies,
    follow_split,
    imbalance,
    imbalance_per_layer,
    keep_in_place,
    limit_layers,
    moved_slots,
    plan,
    plan_transfers,
    prefer_local_copies,
    rank_loads,
    write_placement,
)
from thalweg.eplb.history import MOST_COUNT
from thalweg.interfaces import ConfigError

PLACEMENT = Placement.from_slots(np.array([[0, 1, 2, 0], [0, 1, 2, 1]], np.int32), 2, 3)
SLOTS, TABLE = PLACEMENT.logical_of_physical, PLACEMENT.physical_of_logical
COPIES = PLACEMENT.copies()
TOKENS = np.array([[4, 5, 6], [1, 0, 2]])
LOADS = np.ones((2, 5, 2))
"""[ranks, steps, layers]"""


def refused(message: str, call: Any, *arguments: Any, **options: Any) -> None:
    with pytest.raises(ConfigError, match=message):
        call(*arguments, **options)


@pytest.mark.parametrize(
    ("tokens", "message"),
    [
        (TOKENS.tolist(), r"tokens is \[\[4, 5, 6\], \[1, 0, 2\]\]; it must be an array that has integers >= 0"),
        (None, "tokens is None; it must be an array"),
        (TOKENS * 1.0, "tokens is float64; it must be an array that has integers"),
        (TOKENS > 1, "tokens is bool; it must be an array that has integers"),
        (TOKENS.astype(object), "tokens is object; it must be an array that has integers"),
        (TOKENS * 2**40, "tokens holds 6597069766656; it may have at most 2147483647"),
    ],
)
def test_tokens_of_a_split(tokens: Any, message: str) -> None:
    refused(message, StepSplit(PLACEMENT).split, tokens)
    refused(message, StepSplit(PLACEMENT).split_layer, 0, tokens)


@pytest.mark.parametrize("layer", [True, False, "x", None, 1.0, -1, 2, 2**70, [0], np.array([0, 1])])
def test_the_layer_of_a_split(layer: Any) -> None:
    refused(r"layer is .*; it must be an integer in 0\.\.1", StepSplit(PLACEMENT).split_layer, layer, TOKENS[0])


def test_integers_of_numpy_are_layers() -> None:
    split = StepSplit(PLACEMENT)
    assert split.split_layer(np.int64(1), TOKENS[1]).tolist() == split.split(TOKENS)[1].tolist()


@pytest.mark.parametrize(
    ("tokens", "experts", "message"),
    [
        (
            [[1, 2]],
            [[0, 1]],
            r"tokens_of_slot is \[\[1, 2\]\]; it must be an array of integers, \[1 layers, local slots\]",
        ),
        (None, np.array([[0, 1]]), "tokens_of_slot is None; it must be an array of integers"),
        (np.array([[1, 2]]), None, "logical_of_slot is None; it must be an array of integers"),
        (
            np.array([[1, 2]]),
            np.array([[0.0, 1.0]]),
            r"logical_of_slot is float64 of shape \(1, 2\); it must be an array",
        ),
        (np.array([1, 2]), np.array([0, 1]), r"tokens_of_slot is int64 of shape \(2,\)"),
        (np.array([[1, 2]]), np.array([[0, -1]]), r"logical_of_slot holds -1 to 0; it must have integers in 0\.\.2"),
    ],
)
def test_rows_of_a_window(tokens: Any, experts: Any, message: str) -> None:
    window = CountingWindow(2, 1, 3)
    refused(message, window.record, tokens, experts)
    assert window.num_recorded == 0


def test_unsigned_rows_are_counted() -> None:
    window = CountingWindow(2, 1, 3)
    window.record(np.array([[1, 2]], np.uint64), np.array([[0, 2]], np.uint64))
    assert window.history().tolist() == [[[1, 0, 2]]]


@pytest.mark.parametrize(
    ("order", "message"),
    [
        ("x", "copy_order is <U1 of shape .*; it must be integers of"),
        ([[0, 1, 2, 3]], r"copy_order is int64 of shape \(1, 4\), no permutation"),
        ([[0, 1], [2]], r"copy_order is \[\[0, 1\], \[2\]\]; it must be integers of \[layers, slots\]"),
        (np.array([[0.0, 1, 2, 3]] * 2), r"copy_order is float64 of shape \(2, 4\); it must be integers"),
    ],
)
def test_orders_of_copies(order: Any, message: str) -> None:
    refused(message, Placement.from_slots, SLOTS, 2, 3, order)


def test_tables_of_a_placement() -> None:
    ragged = [[0], [0, 1]]
    refused(r"logical_of_physical is \[\[0\], \[0, 1\]\]; it must be integers of", Placement.from_slots, ragged, 1, 2)
    refused("logical_of_physical is object of", Placement.from_slots, None, 1, 2)
    refused(r"physical_of_logical is \[\[0\], \[0, 1\]\]; it must be", Placement.from_tables, SLOTS, ragged, 2)
    refused(r"num_layers is 1000000000000; it must be an integer in 1\.\.65536", Placement.initial, 10**12, 3, 4, 2)


@pytest.mark.parametrize("chosen", [[True, False], "x", None, np.array([1, 0])])
def test_chosen_layers(chosen: Any) -> None:
    refused(r"chosen is .*; it must be an array of bool, \[2\]", PLACEMENT.with_layers, PLACEMENT, chosen)


def test_what_is_no_placement() -> None:
    is_none = r" is 'x'; it must be a thalweg\.eplb\.Placement"
    history = np.ones((1, 2, 3))
    refused("other" + is_none, PLACEMENT.with_layers, "x", np.array([True, False]))
    refused("other" + is_none, PLACEMENT.equals, "x")
    refused("new" + is_none, moved_slots, PLACEMENT, "x")
    refused("old" + is_none, moved_slots, "x", PLACEMENT)
    refused("target" + is_none, limit_layers, PLACEMENT, "x", history, 1)
    refused("placement" + is_none, rank_loads, history, "x")
    refused("placement" + is_none, StepSplit, "x")
    refused("placement" + is_none, write_placement, "x.npz", "x")
    refused("current is array", limit_layers, SLOTS, PLACEMENT, history, 1)


@pytest.mark.parametrize("call", [plan_transfers, keep_in_place])
def test_slots_of_a_transfer(call: Any) -> None:
    refused(r"old is \[0, 1, 2, 0\]; it must be an array that has integers >= 0", call, SLOTS[0].tolist(), SLOTS[0], 2)
    refused("new is None; it must be an array that has integers >= 0", call, SLOTS[0], None, 2)


@pytest.mark.parametrize("measure", [imbalance, imbalance_per_layer])
def test_loads_that_are_measured(measure: Any) -> None:
    refused("loads is 'x'; it must be an array of integers or floats", measure, "x")
    refused("loads is .*; it must be an array of integers or floats", measure, LOADS.tolist())
    for bad in (np.nan, np.inf, -1.0, 1e308, np.float32("inf")):
        loads = np.full((4, 2, 2), bad)
        refused(r"loads holds .*; it must have finite numbers in 0\.\.1e\+100", measure, loads)
    refused(r"loads is float64 of shape \(2, 5, 0\); it must be \[.*ranks\]", measure, LOADS[:, :, :0])
    refused(r"loads is float64 of shape \(\); it must be", measure, np.array(1.0))


def test_float32_loads_are_added_up_in_float64() -> None:
    assert imbalance(np.full((4, 2, 2), 3e38, np.float32)) == 1.0


@pytest.mark.parametrize(
    ("changes", "message"),
    [
        ({"logical": np.array([[99]])}, r"logical holds 99 to 99; it must have integers in -1\.\.2"),
        ({"logical": np.array([[-2]])}, r"logical holds -2 to -2; it must have integers in -1\.\.2"),
        ({"logical": [[0]]}, r"logical is \[\[0\]\]; it must be an array of integers, \[rows, k\]"),
        ({"logical": np.array([[0.0]])}, "logical is float64"),
        ({"slots_of_logical": TABLE}, r"slots_of_logical is int32 of shape \(2, 3, 2\)"),
        ({"slots_of_logical": TABLE[0, :, :0]}, r"slots_of_logical has shape \(3, 0\); no dimension may be 0"),
        ({"num_copies": COPIES[0, :2]}, "num_copies has 2 experts; slots_of_logical has 3"),
        ({"num_copies": COPIES[0] * 0}, r"num_copies holds 0 to 0; it must have integers in 1\.\.2"),
        ({"num_copies": COPIES[0] + 9}, r"num_copies holds 10 to 11; it must have integers in 1\.\.2"),
        ({"rank": -1}, "rank is -1; it must be an integer in 0"),
        ({"rank": True}, "rank is True; it must be an integer in 0"),
    ],
)
def test_copies_that_are_chosen(changes: dict[str, Any], message: str) -> None:
    given = {"logical": np.array([[0]]), "slots_of_logical": TABLE[0], "num_copies": COPIES[0], "rank": 0}
    refused(message, choose_copies, **given | changes)


@pytest.mark.parametrize(
    ("changes", "message"),
    [
        ({"logical": np.array([[3]])}, r"logical holds 3 to 3; it must have integers in -1\.\.2"),
        ({"logical": None}, "logical is None"),
        ({"slots_of_logical": TABLE[0] + 9}, r"slots_of_logical holds 8 to 12; it must have integers in -1\.\.3"),
        (
            {"tokens_of_slot": [1, 1, 1, 1]},
            r"tokens_of_slot is \[1, 1, 1, 1\]; it must be an array of integers, \[slots\]",
        ),
        ({"tokens_of_slot": np.array([1, 1, 1, -1])}, "tokens_of_slot holds -1; it must have integers >= 0"),
        ({"tokens_of_slot": np.ones(4)}, "tokens_of_slot is float64"),
        ({"tokens_before": np.zeros(2, int)}, "tokens_before has 2 experts; slots_of_logical has 3"),
        ({"tokens_before": np.array([-1, 0, 0])}, "tokens_before holds -1; it must have integers >= 0"),
    ],
)
def test_splits_that_are_followed(changes: dict[str, Any], message: str) -> None:
    given = {
        "logical": np.array([[0]]),
        "slots_of_logical": TABLE[0],
        "tokens_of_slot": np.ones(4, int),
        "tokens_before": np.zeros(3, int),
    }
    assert follow_split(**given).tolist() == [[0]]
    refused(message, follow_split, **given | changes)


def test_local_copies_that_are_preferred() -> None:
    logical, slots = np.array([[0]]), np.array([[0]], np.int32)
    refused("logical is None", prefer_local_copies, None, slots, SLOTS[0], 0, 2)
    refused(
        r"slots has shape \(2, 1\); it must be that of logical",
        prefer_local_copies,
        logical,
        TABLE[0, :2, :1],
        SLOTS[0],
        0,
        2,
    )
    refused(r"rank is -1; it must be an integer in 0\.\.1", prefer_local_copies, logical, slots, SLOTS[0], -1, 2)
    refused(r"rank is 2; it must be an integer in 0\.\.1", prefer_local_copies, logical, slots, SLOTS[0], 2, 2)
    refused(
        r"slots_per_rank is 0; it must be an integer in 1\.\.4", prefer_local_copies, logical, slots, SLOTS[0], 0, 0
    )


@pytest.mark.parametrize("bad", [-1.0, np.nan, np.inf])
def test_loads_that_are_monitored(bad: float) -> None:
    monitor = BalanceMonitor(2, expert_bytes=1)
    loads = LOADS.copy()
    loads[1, 2, 0] = bad
    refused(r"loads holds .*; it must have finite numbers in 0\.\.1e\+100", monitor.record, loads)
    refused("loads is None; it must be an array", monitor.record, None)
    refused("loads have shape", monitor.record, LOADS[:0])
    monitor.record(LOADS)
    assert monitor.report(1).live_imbalance == 1.0


def test_what_a_monitor_is_told() -> None:
    monitor = BalanceMonitor(2, expert_bytes=1)
    refused("new is None", monitor.adopt, 1, PLACEMENT, None, np.ones(2))
    refused(r"planned_imbalance is \[1, 1\]; it must be an array", monitor.adopt, 1, PLACEMENT, PLACEMENT, [1, 1])
    for bad in (-1, "x", None, 2**70):
        refused("step is .*; it must be an integer in 0", monitor.adopt, bad, PLACEMENT, PLACEMENT, np.ones(2))
        refused("step is .*; it must be an integer in 0", monitor.report, bad)
        refused("first_step is .*; it must be an integer in 0", BalanceMonitor, 2, 1, bad)


def test_schedules() -> None:
    refused("is_mixed is 'x'; it must be True or False", ScheduleConfig, is_mixed="x")
    refused("after_prefill is 1; it must be True or False", ScheduleConfig, after_prefill=1)
    refused(
        "after_prefill is True; it must be False unless is_mixed", ScheduleConfig, is_mixed=False, after_prefill=True
    )


@pytest.mark.parametrize("planner", [GreedyPlanner(), ReferencePlanner()])
@pytest.mark.parametrize("dtype", [np.float32, np.float64])
def test_the_largest_counts_are_planned_and_larger_ones_refused(planner: Any, dtype: Any) -> None:
    history = np.zeros((4, 1, 8), dtype)
    history[:, 0, :4] = MOST_COUNT
    assert plan(history, 8, 4, planner=planner).num_slots == 8
    assert imbalance(rank_loads(history, plan(history, 8, 4, planner=planner))) == pytest.approx(1.0)
    refused(
        r"history holds the count 2.*e\+30; counts may be at most 1\.26765e\+30",
        plan,
        history * 2,
        8,
        4,
        planner=planner,
    )
