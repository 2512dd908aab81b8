"""The split that the device redoes: recorded cases, its invariants, and bad input."""

import json
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from thalweg.dspark import ThroughputBudget, redistribute

CASES = json.loads((Path(__file__).parent / "golden/zos_redistribute.json").read_text())


@pytest.mark.parametrize("case", CASES, ids=range(len(CASES)))
def test_recorded_totals_are_split_as_recorded(case: dict[str, Any]) -> None:
    rows, confidences = np.array(case["remap"], np.int32), np.array(case["prev_confidence"], np.float32)
    assert redistribute(case["total_q"], rows, confidences).tolist() == case["seqlens_q"]


CONFIDENCE = st.sampled_from([0.0, 0.5, 0.9, 1.0]) | st.floats(0, 1, width=32)


@settings(max_examples=150, deadline=None)
@given(st.data())
def test_the_total_is_kept_and_likelier_drafts_go_first(data: st.DataObject) -> None:
    num_previous, draft_length = data.draw(st.integers(0, 6)), data.draw(st.integers(0, 5))
    values = data.draw(st.lists(CONFIDENCE, min_size=num_previous * draft_length, max_size=num_previous * draft_length))
    confidences = np.array(values, np.float32).reshape(num_previous, draft_length)
    rows = np.array(data.draw(st.lists(st.integers(-1, num_previous - 1), max_size=8)), np.int32)
    total = data.draw(st.integers(len(rows), len(rows) * (1 + draft_length)))
    lengths = redistribute(total, rows, confidences)
    assert lengths.dtype == np.int32
    assert lengths.sum() == total
    survival = [np.cumprod(confidences[row]) if row >= 0 else np.zeros(draft_length) for row in rows]
    inside = [a for row, q in zip(survival, lengths, strict=True) for a in row[: q - 1]]
    outside = [a for row, q in zip(survival, lengths, strict=True) for a in row[q - 1 :]]
    assert min(inside, default=1.0) >= max(outside, default=0.0) - 1e-6


def test_it_splits_like_the_budget_when_nothing_moved() -> None:
    """Host and device agree about a step whose rows are those of the step before."""
    generator = np.random.default_rng(5)
    budget = ThroughputBudget()
    budget.set_step_time_curve([(size, 10 + size**1.5 / 9) for size in range(4, 80, 4)])
    for num_rows in range(1, 14):
        confidences = generator.choice([0.0, 0.5, 0.9, 1.0], size=(num_rows, 5)).astype(np.float32)
        survival = list(np.multiply.accumulate(confidences, axis=1, dtype=np.float32))
        planned = budget.verify_lengths(survival, survival)
        again = redistribute(int(planned.sum()), np.arange(num_rows, dtype=np.int32), confidences)
        assert again.tolist() == planned.tolist()


def test_fresh_rows_get_what_nobody_else_can_use() -> None:
    confidences = np.array([[0.5, 0.5]], np.float32)
    assert redistribute(5, np.array([-1, 0], np.int32), confidences).tolist() == [2, 3]
    assert redistribute(4, np.array([-1, 0], np.int32), confidences).tolist() == [1, 3]


def test_what_cannot_be_split_is_refused() -> None:
    rows, confidences = np.array([0, -1], np.int32), np.array([[0.5, 0.5]], np.float32)
    for total in (1, 7):
        with pytest.raises(ValueError, match=f"total is {total}; 2 rows of up to 2 drafts share 2 to 6"):
            redistribute(total, rows, confidences)
    for row in (1, -2):
        with pytest.raises(ValueError, match=rf"previous_rows\[1\] is {row}; it must be from -1 to 0"):
            redistribute(3, np.array([0, row], np.int32), confidences)
    for bad in (np.nan, -0.5, 1.5):
        with pytest.raises(ValueError, match=rf"confidences\[0\]\[1\] is {bad}; it must be from 0 to 1"):
            redistribute(3, rows, np.array([[0.5, bad]], np.float32))


@pytest.mark.parametrize(
    ("rows", "confidences", "message"),
    [
        ([0], np.ones((1, 2), np.float32), "previous_rows is a list; an array of int32 with one dimension is needed"),
        (np.zeros(1), np.ones((1, 2), np.float32), r"previous_rows is a float64 array of shape \(1,\)"),
        (np.zeros(1, np.int32), np.ones((1, 2)), "confidences is a float64 array"),
        (
            np.zeros(1, np.int32),
            np.ones(2, np.float32),
            r"shape \(2,\); an array of float32 with 2 dimensions is needed",
        ),
    ],
)
def test_other_arrays_are_refused(rows: Any, confidences: Any, message: str) -> None:
    with pytest.raises(ValueError, match=message):
        redistribute(1, rows, confidences)
