"""How good predicted probabilities are: calibration error, Brier score, ranking, and the bins of a reliability plot."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any

import numpy as np
from numpy.typing import NDArray

from thalweg.dspark._checks import require_integer
from thalweg.interfaces import shown

NUM_BINS = 15


@dataclass(frozen=True, slots=True)
class Reliability:
    """Predictions in bins of equal width over 0..1; bins that hold none are left out."""

    counts: NDArray[np.int64]
    """[bins]"""
    predicted: NDArray[np.float64]
    """[bins] mean prediction."""
    observed: NDArray[np.float64]
    """[bins] share of true outcomes."""

    @property
    def error(self) -> float:
        """Expected calibration error: mean distance of prediction and outcome, each bin weighing what it holds."""
        return float(np.average(np.abs(self.predicted - self.observed), weights=self.counts))


def measure_reliability(predictions: NDArray[Any], outcomes: NDArray[Any], num_bins: int = NUM_BINS) -> Reliability:
    """Put n predictions (numbers from 0 to 1, [n]) and their outcomes (0 or 1, [n]) into bins.

    A prediction on the border of two bins belongs to the upper one, and 1 to the last. Raises ValueError for anything
    else, ConfigError for a number of bins beyond 1 to 10,000.
    """
    require_integer("num_bins", num_bins, 1, 10_000)
    predictions, outcomes = _checked(predictions, outcomes)
    bins = np.minimum((predictions * num_bins).astype(np.int64), num_bins - 1)
    counts = np.bincount(bins, minlength=num_bins)
    is_used = counts > 0
    sums = (np.bincount(bins, values, num_bins)[is_used] for values in (predictions, outcomes))
    predicted, observed = (total / counts[is_used] for total in sums)
    return Reliability(counts[is_used], predicted, observed)


def brier_score(predictions: NDArray[Any], outcomes: NDArray[Any]) -> float:
    """Mean squared difference; 0 is perfect. Arguments as for `measure_reliability`."""
    predictions, outcomes = _checked(predictions, outcomes)
    return float(np.mean((predictions - outcomes) ** 2))


def auroc(predictions: NDArray[Any], outcomes: NDArray[Any]) -> float | None:
    """The chance that a true outcome was predicted higher than a false one, equals counting half.

    None unless there are outcomes of both kinds. Arguments as for `measure_reliability`.
    """
    predictions, outcomes = _checked(predictions, outcomes)
    num_true = float(outcomes.sum())
    num_false = len(outcomes) - num_true
    if not num_true or not num_false:
        return None
    _, group, counts = np.unique(predictions, return_inverse=True, return_counts=True)
    mean_ranks = np.cumsum(counts) - (counts - 1) / 2  # from 1; equal predictions share the mean of their ranks
    rank_sum = float(mean_ranks[group][outcomes == 1].sum())
    return (rank_sum - num_true * (num_true + 1) / 2) / (num_true * num_false)


def _checked(predictions: Any, outcomes: Any) -> tuple[NDArray[np.float64], NDArray[np.float64]]:
    """Both as float64 [n]."""
    arrays = []
    for name, value in (("predictions", predictions), ("outcomes", outcomes)):
        if not (isinstance(value, np.ndarray) and value.dtype.kind in "biuf" and value.ndim == 1):
            raise ValueError(f"{name} is {shown(value)}; an array of numbers with one dimension is needed")
        arrays.append(value.astype(np.float64))
    predictions, outcomes = arrays
    if len(predictions) != len(outcomes) or not len(predictions):
        raise ValueError(f"there are {len(predictions)} predictions and {len(outcomes)} outcomes; as many are needed")
    # Written so that a NaN fails.
    is_wrong = ~((predictions >= 0) & (predictions <= 1))
    if is_wrong.any():
        i = int(is_wrong.argmax())
        raise ValueError(f"predictions[{i}] is {predictions[i]}; a number from 0 to 1 is needed")
    is_wrong = (outcomes != 0) & (outcomes != 1)
    if is_wrong.any():
        i = int(is_wrong.argmax())
        raise ValueError(f"outcomes[{i}] is {outcomes[i]}; 0 or 1 is needed")
    return predictions, outcomes
