"""Acceptance counts: the recorded verify step, the formulas, and what is refused."""

from pathlib import Path
from typing import Any

import numpy as np
import pytest

from thalweg.dspark import AcceptanceStatistics
from thalweg.interfaces import ConfigError

GOLDEN = Path(__file__).parent / "golden"
UNKNOWN = np.float32(np.nan)


def test_the_recorded_verify_step_gives_the_recorded_counts_and_confidence_error() -> None:
    step = np.load(GOLDEN / "verify_step.npz")
    shape = (len(step["seqlen_q"]), 5)
    confidences, accept_probs = np.full(shape, UNKNOWN), np.full(shape, UNKNOWN)
    rows = np.flatnonzero(step["is_verify"])
    places = step["row_to_req"][rows], step["local_step"][rows]
    confidences[places] = step["confidence_pool"][step["read_rows"][rows]]
    accept_probs[places] = step["accept_probs"][rows]
    statistics = AcceptanceStatistics(5)
    statistics.add(step["seqlen_q"] - 1, step["F_last_valid_offset"], confidences, accept_probs)
    assert statistics.verified_by_position.tolist() == step["F_num_verified_tokens"].tolist()
    assert statistics.accepted_by_position.tolist() == step["F_num_generated_tokens"].tolist()
    assert statistics.confidence_error_sum == pytest.approx(float(step["F_batch_confidence_error"]), rel=1e-6)
    assert statistics.num_confidence_errors == step["F_num_verified_tokens"].sum()


def test_figures_are_those_of_all_rows_together() -> None:
    statistics = AcceptanceStatistics(3)
    statistics.add(np.array([3, 3]), np.array([3, 1]))
    statistics.add(np.array([0, 1], np.int32), np.array([0, 0], np.int32))
    assert statistics.num_rows == 4
    assert statistics.accept_rates.tolist() == [2 / 3, 1 / 2, 1 / 2]
    assert statistics.accept_rate == 4 / 7
    assert statistics.verified_length == 7 / 4
    assert statistics.accepted_length == 2.0
    assert statistics.confidence_error is None


def test_nothing_is_known_before_anything_was_verified() -> None:
    statistics = AcceptanceStatistics(2)
    assert np.isnan(statistics.accept_rates).all()
    figures = (statistics.accept_rate, statistics.verified_length, statistics.accepted_length)
    assert figures == (None, None, None)
    statistics.add(np.zeros(2, np.int32), np.zeros(2, np.int32))
    assert (statistics.accept_rate, statistics.verified_length, statistics.accepted_length) == (None, 0.0, 1.0)
    assert np.isnan(statistics.accept_rates).all()


def test_unknown_confidences_and_drafts_that_were_not_verified_are_no_errors() -> None:
    statistics = AcceptanceStatistics(2)
    confidences = np.array([[0.5, 0.25], [UNKNOWN, 1.0], [0.0, 7.0]], np.float32)
    accept_probs = np.array([[1.0, 0.5], [0.5, UNKNOWN], [1.0, -7.0]], np.float32)
    statistics.add(np.array([2, 2, 1]), np.array([2, 0, 1]), confidences, accept_probs)
    assert statistics.num_confidence_errors == 3
    assert statistics.confidence_error == (0.5 + 0.25 + 1.0) / 3


def test_parts_add_up_to_the_whole() -> None:
    random = np.random.default_rng(0)
    num_verified = random.integers(0, 6, 500)
    num_accepted = (random.random(500) * (num_verified + 1)).astype(np.int64)
    confidences, accept_probs = random.random((2, 500, 5), np.float32)
    whole, parts = AcceptanceStatistics(5), AcceptanceStatistics(5)
    whole.add(num_verified, num_accepted, confidences, accept_probs)
    for part in np.array_split(np.arange(500), 7):
        parts.add(num_verified[part], num_accepted[part], confidences[part], accept_probs[part])
    assert (parts.accept_rates == whole.accept_rates).all()
    assert parts.confidence_error == pytest.approx(whole.confidence_error)
    assert whole.accepted_length == 1 + num_accepted.mean()


ROW = np.array([1], np.int32)
HALF = np.full((1, 2), 0.5, np.float32)
BAD_ROWS: dict[str, tuple[Any, ...]] = {
    "num_verified is a list": ([1], ROW),
    "num_accepted is a float64 array": (ROW, np.array([1.0])),
    "num_verified is a int32 array of shape .1, 1.": (ROW[:, None], ROW),
    "num_verified is a bool array": (np.array([True]), ROW),
    "there are 2 num_verified and 1 num_accepted": (np.array([1, 1]), ROW),
    r"num_verified\[0\] is 3; it must be from 0 to 2": (np.array([3]), ROW),
    r"num_verified\[0\] is -1; it must be from 0 to 2": (np.array([-1]), ROW),
    r"num_accepted\[1\] is 2; it must be from 0 to 1": (np.array([1, 1]), np.array([1, 2])),
    r"num_accepted\[0\] is -1; it must be from 0 to 1": (ROW, -ROW),
    r"confidences has shape \(1, 3\); \(1, 2\)": (ROW, ROW, np.zeros((1, 3), np.float32), HALF),
    r"accept_probs has shape \(2, 2\); \(1, 2\)": (ROW, ROW, HALF, np.zeros((2, 2), np.float32)),
    "confidences is a float64 array": (ROW, ROW, HALF.astype(np.float64), HALF),
    r"confidences\[0\]\[0\] is 1.5; it must be from 0 to 1, or NaN": (ROW, ROW, HALF + 1, HALF),
    r"accept_probs\[0\]\[0\] is -inf; it must be from 0 to 1": (ROW, ROW, HALF, HALF - np.float32(np.inf)),
}


@pytest.mark.parametrize("message", BAD_ROWS)
def test_bad_rows_are_refused_and_counted_nowhere(message: str) -> None:
    statistics = AcceptanceStatistics(2)
    with pytest.raises(ValueError, match=message):
        statistics.add(*BAD_ROWS[message])
    assert statistics.num_rows == 0
    assert statistics.verified_by_position.sum() == 0


@pytest.mark.parametrize("draft_length", [0, -1, 1025, True, 2.0, "3", None])
def test_a_draft_length_below_one_is_refused(draft_length: Any) -> None:
    with pytest.raises(ConfigError, match=r"draft_length is .*; an integer from 1 to 1024 is needed"):
        AcceptanceStatistics(draft_length)
