"""The counting window and the schedule against the recorded one, and copies of tokens."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from thalweg.eplb.schedule import RearrangementSchedule, ScheduleConfig
from thalweg.eplb.window import CountingWindow
from thalweg.interfaces import ConfigError, StepKind

CASES = json.loads((Path(__file__).parent / "golden" / "rearrange_schedule.json").read_text())


@pytest.mark.parametrize("case", CASES, ids=lambda case: f"{case['window']}-{case['interval']}-{case['steps'][:8]}")
def test_it_fires_and_counts_as_recorded(case: dict[str, Any]) -> None:
    config = ScheduleConfig(
        interval=case["interval"],
        window=case["window"],
        is_mixed=case["normal_engine"],
        after_prefill=case["rearrange_after_prefill"],
    )
    schedule, window = RearrangementSchedule(config), CountingWindow(case["window"], 1, 1)
    fired = []
    for step, letter in enumerate(case["steps"]):
        actions = schedule.observe(StepKind.PREFILL if letter == "P" else StepKind.DECODE)
        if actions.records:
            window.record(np.array([[step + 1]]), np.array([[0]]))
        if actions.rearranges:
            fired.append((step, window.history().ravel().tolist()))
    expected = [(fire["step"], sorted(mark for mark in fire["window_marks"] if mark)) for fire in case["fired"]]
    assert fired == expected


def test_copies_of_an_expert_add_up_and_rows_keep_their_experts() -> None:
    window = CountingWindow(3, num_layers=2, num_experts=4)
    counts = np.array([[5, 7, 1], [2, 0, 4]])
    window.record(counts, np.array([[0, 0, 3], [1, 2, 1]]))
    window.record(counts, np.array([[3, 2, 1], [1, 2, 3]]))  # after a rearrangement
    assert window.history().tolist() == [[[12, 0, 0, 1], [0, 6, 0, 0]], [[0, 1, 7, 5], [0, 2, 0, 4]]]
    assert window.num_recorded == 2


def test_the_history_is_a_copy() -> None:
    window = CountingWindow(1, 1, 2)
    window.record(np.array([[1]]), np.array([[1]]))
    history = window.history()
    window.record(np.array([[9]]), np.array([[0]]))
    assert history.tolist() == [[[0, 1]]]
    assert window.history().tolist() == [[[9, 0]]]


@pytest.mark.parametrize(
    ("tokens", "experts", "message"),
    [
        ([[1, 2]], [[0]], r"both must be \[1 layers, local slots\]"),
        ([[1], [2]], [[0], [0]], r"both must be \[1 layers"),
        ([[-1]], [[0]], "integers >= 0"),
        ([[0.5]], [[0]], "tokens_of_slot is float64 of shape .* must be an array of integers"),
        ([[1]], [[2]], r"logical_of_slot holds 2 to 2; it must have integers in 0\.\.1"),
        ([[2**31]], [[0]], "tokens_of_slot holds 2147483648; it may have at most 2147483647"),
        ([[2**30, 2**30]], [[1, 1]], "the sum over copies of an expert holds 2147483648"),
    ],
)
def test_bad_counts_are_refused(tokens: list[Any], experts: list[Any], message: str) -> None:
    with pytest.raises(ConfigError, match=message):
        CountingWindow(2, 1, 2).record(np.array(tokens), np.array(experts))


def test_bad_sizes_are_refused() -> None:
    with pytest.raises(ConfigError, match="num_steps is 0"):
        CountingWindow(0, 1, 1)
    with pytest.raises(ConfigError, match=r"window is 9; with interval 8 it must be 1\.\.8"):
        ScheduleConfig(interval=8, window=9)
    with pytest.raises(ConfigError, match="interval is -1"):
        ScheduleConfig(interval=-1)
