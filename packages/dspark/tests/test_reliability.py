"""Calibration error, Brier score and ranking, on cases worked out by hand and against slow definitions."""

from typing import Any

import numpy as np
import pytest

from thalweg.dspark.reliability import auroc, brier_score, measure_reliability
from thalweg.interfaces import ConfigError

PREDICTIONS = np.array([0.1, 0.15, 0.6, 0.7, 0.9])
OUTCOMES = np.array([0, 1, 1, 0, 1])


def test_bins_hold_means_and_the_error_weighs_them_by_what_they_hold() -> None:
    bins = measure_reliability(PREDICTIONS, OUTCOMES, 2)
    assert bins.counts.tolist() == [2, 3]
    assert bins.predicted == pytest.approx([0.125, 2.2 / 3])
    assert bins.observed == pytest.approx([0.5, 2 / 3])
    assert bins.error == pytest.approx((2 * 0.375 + 0.2) / 5)


def test_a_prediction_on_a_border_belongs_to_the_upper_bin_and_one_to_the_last() -> None:
    bins = measure_reliability(np.array([0.0, 0.5, 1.0]), np.array([False, True, True]), 2)
    assert bins.counts.tolist() == [1, 2]
    assert bins.error == pytest.approx((0 + 2 * 0.25) / 3)


def test_empty_bins_are_left_out() -> None:
    bins = measure_reliability(np.array([0.05, 0.95]), np.array([0, 1]), 10)
    assert bins.counts.tolist() == [1, 1]


def test_certainty_that_is_right_has_no_error_and_certainty_that_is_wrong_has_all() -> None:
    right, wrong = np.array([0.0, 1.0]), np.array([1.0, 0.0])
    for predictions, expected in ((right, 0.0), (wrong, 1.0)):
        assert measure_reliability(predictions, right).error == expected
        assert brier_score(predictions, right) == expected
        assert auroc(predictions, right) == 1 - expected


def test_brier_score_is_the_mean_squared_difference() -> None:
    assert brier_score(PREDICTIONS, OUTCOMES) == pytest.approx((0.01 + 0.7225 + 0.16 + 0.49 + 0.01) / 5)


def test_auroc_counts_pairs_and_half_of_equals() -> None:
    random = np.random.default_rng(0)
    predictions = random.integers(0, 8, 200) / 8
    outcomes = random.random(200) < 0.4
    pairs = predictions[outcomes][:, None] - predictions[~outcomes][None, :]
    assert auroc(predictions, outcomes) == pytest.approx(((pairs > 0) + (pairs == 0) / 2).mean())
    assert auroc(PREDICTIONS, OUTCOMES) == pytest.approx(4 / 6)
    assert auroc(np.full(4, 0.3), np.array([0, 1, 1, 0])) == 0.5


@pytest.mark.parametrize("outcome", [0, 1])
def test_ranking_means_nothing_when_all_outcomes_are_equal(outcome: int) -> None:
    assert auroc(PREDICTIONS, np.full(5, outcome)) is None


BAD_ARGUMENTS: dict[str, tuple[Any, Any]] = {
    r"predictions is \[0\.5\]; an array": ([0.5], np.array([1])),
    "outcomes is array.*; an array of numbers": (np.array([0.5]), np.array(["1"])),
    "predictions is array.*one dimension": (np.array([[0.5]]), np.array([1])),
    "there are 2 predictions and 1 outcomes": (np.array([0.5, 0.5]), np.array([1])),
    "there are 0 predictions and 0 outcomes": (np.array([]), np.array([])),
    r"predictions\[1\] is 1\.5; a number from 0 to 1": (np.array([0.5, 1.5]), np.array([1, 1])),
    r"predictions\[0\] is nan": (np.array([np.nan, 0.5]), np.array([1, 1])),
    r"outcomes\[1\] is 0\.5; 0 or 1": (np.array([0.5, 0.5]), np.array([1, 0.5])),
    r"outcomes\[0\] is nan": (np.array([0.5, 0.5]), np.array([np.nan, 1])),
}


@pytest.mark.parametrize("function", [measure_reliability, brier_score, auroc])
@pytest.mark.parametrize("message", BAD_ARGUMENTS)
def test_what_are_no_predictions_and_outcomes_is_refused(function: Any, message: str) -> None:
    with pytest.raises(ValueError, match=message):
        function(*BAD_ARGUMENTS[message])


@pytest.mark.parametrize("num_bins", [0, -3, True, 2.0, "15", None, 10**9])
def test_a_bad_number_of_bins_is_refused(num_bins: Any) -> None:
    with pytest.raises(ConfigError, match=r"num_bins is .*; an integer from 1 to 10000 is needed"):
        measure_reliability(PREDICTIONS, OUTCOMES, num_bins)
