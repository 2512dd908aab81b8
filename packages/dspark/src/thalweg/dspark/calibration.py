"""Fits the temperatures that make confidences mean what they say: one position after the other, from records."""

from __future__ import annotations

import math
from collections.abc import Callable
from dataclasses import dataclass

import numpy as np
from numpy.typing import NDArray

from thalweg.dspark.records import ConfidenceRecords
from thalweg.dspark.reliability import NUM_BINS, Reliability, auroc, brier_score, measure_reliability
from thalweg.dspark.scaling import log_confidences, logits, survival_at
from thalweg.interfaces import ConfigError

LOWEST, HIGHEST = 0.2, 5.0
"""Between these a temperature is searched."""
MIN_OUTCOMES = 10
"""Rows of either outcome that a position needs; with fewer its temperature stays 1."""
MIN_GAIN = 3.84 / 2
"""Nats by which the records must prefer a temperature to 1: a likelihood ratio test at 5 %."""
_GRID: list[float] = np.geomspace(LOWEST, HIGHEST, 41).tolist()


@dataclass(frozen=True, slots=True)
class Quality:
    """How good the predicted survival of one position is."""

    reliability: Reliability
    brier: float
    auroc: float | None
    """None when all outcomes are equal."""


@dataclass(frozen=True, slots=True)
class PositionFit:
    """What was fitted for one draft position."""

    num_rows: int
    """Rows in which this draft was verified."""
    num_accepted: int
    """Of these, rows in which it and all before it were accepted."""
    temperature: float
    note: str
    """Why the temperature is what it is, where that is worth a word; else empty."""
    before: Quality | None
    """Of the confidences as recorded; None without rows."""
    after: Quality | None


@dataclass(frozen=True, slots=True)
class Calibration:
    """The fit of every draft position."""

    num_records: int
    positions: tuple[PositionFit, ...]

    @property
    def temperatures(self) -> tuple[float, ...]:
        return tuple(position.temperature for position in self.positions)


def calibrate(records: ConfidenceRecords, num_bins: int = NUM_BINS) -> Calibration:
    """Choose a temperature for each position in turn, those before it fixed.

    What is predicted is survival, the product of the confidences so far; what happened is whether the draft and all
    before it were accepted. The temperature with the smallest negative log likelihood wins if it beats 1 clearly.
    Records must come from verifying a fixed number of drafts at temperature 1: lengths chosen by confidence hide what
    would have become of the others. Raises ConfigError without records and for a bad number of bins.
    """
    if not len(records.num_accepted):
        raise ConfigError("there are no records to calibrate with")
    fits = _fit_in_sequence(records)
    before = survival_at(records.confidences, [1.0] * records.draft_length)
    after = survival_at(records.confidences, [temperature for temperature, _ in fits])
    positions = []
    for j, (temperature, note) in enumerate(fits):
        is_verified = ~np.isnan(before[:, j])
        outcomes = records.num_accepted[is_verified] > j
        qualities = (_quality(survival[is_verified, j], outcomes, num_bins) for survival in (before, after))
        positions.append(PositionFit(len(outcomes), int(outcomes.sum()), temperature, note, *qualities))
    return Calibration(len(records.num_accepted), tuple(positions))


def _fit_in_sequence(records: ConfidenceRecords) -> list[tuple[float, str]]:
    """Temperature and note of every position."""
    fits = []
    log_before = np.zeros(len(records.num_accepted))
    for j in range(records.draft_length):
        row_logits = logits(records.confidences[:, j])
        is_verified = ~np.isnan(row_logits)
        outcomes = records.num_accepted[is_verified] > j
        fits.append(_fit(log_before[is_verified], row_logits[is_verified], outcomes))
        log_before = log_before + log_confidences(row_logits, fits[j][0])
    return fits


def _fit(
    log_before: NDArray[np.float64], row_logits: NDArray[np.float64], outcomes: NDArray[np.bool_]
) -> tuple[float, str]:
    """Temperature and note of one position; log_before: [n] log survival of the drafts before it."""
    num_accepted = int(outcomes.sum())
    for count, kind in ((num_accepted, "accepted"), (len(outcomes) - num_accepted, "rejected")):
        if count < MIN_OUTCOMES:
            return 1.0, f"kept: {count} {kind}, {MIN_OUTCOMES} needed"

    def loss(temperature: float) -> float:
        """Negative log likelihood of the outcomes, in nats."""
        log_survival = log_before + log_confidences(row_logits, temperature)
        return -float(np.where(outcomes, log_survival, np.log(-np.expm1(log_survival))).sum())

    temperature = _minimum(loss)
    if loss(1.0) - loss(temperature) < MIN_GAIN:
        return 1.0, "kept: no other is clearly better"
    is_at_edge = min(temperature / LOWEST, HIGHEST / temperature) < 1.001
    return temperature, f"at the edge of {LOWEST:g} to {HIGHEST:g}" if is_at_edge else ""


def _minimum(loss: Callable[[float], float]) -> float:
    """Where the loss is smallest: a grid finds the valley, a golden section search its bottom, to 1 in 100,000."""
    best = int(np.argmin([loss(temperature) for temperature in _GRID]))
    low, high = math.log(_GRID[max(best - 1, 0)]), math.log(_GRID[min(best + 1, len(_GRID) - 1)])
    ratio = (math.sqrt(5) - 1) / 2
    left, right = high - ratio * (high - low), low + ratio * (high - low)
    at_left, at_right = loss(math.exp(left)), loss(math.exp(right))
    while high - low > 1e-5:
        if at_left <= at_right:
            high, right, at_right = right, left, at_left
            left = high - ratio * (high - low)
            at_left = loss(math.exp(left))
        else:
            low, left, at_left = left, right, at_right
            right = low + ratio * (high - low)
            at_right = loss(math.exp(right))
    return math.exp((low + high) / 2)


def _quality(predictions: NDArray[np.float64], outcomes: NDArray[np.bool_], num_bins: int) -> Quality | None:
    if not len(outcomes):
        return None
    bins = measure_reliability(predictions, outcomes, num_bins)
    return Quality(bins, brier_score(predictions, outcomes), auroc(predictions, outcomes))
