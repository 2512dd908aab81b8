"""The verification budget: as many drafts as give the most tokens per millisecond, and the likeliest ones of them."""

from __future__ import annotations

import math
from collections.abc import Sequence
from operator import index

import numpy as np
from numpy.typing import NDArray

from thalweg.dspark._survival import Survival, check_same_drafts, flatten
from thalweg.dspark.curve import StepTimeCurve
from thalweg.dspark.estimators import SamplerTimeEstimator, SlopeEstimator


class ThroughputBudget:
    """Maximises expected tokens per millisecond of each step; `thalweg.scheduler.VerifyBudget` is its C++ twin.

    A step of B query tokens, N of them anchors, is expected to commit E(B) tokens (each sequence's own next token and
    the survival of every verified draft, best first) and takes the graph's time on the curve, plus a measured slope
    per token of the graph, plus the sampler's time. Satisfies `thalweg.interfaces.VerifyBudget`.
    """

    def __init__(self) -> None:
        self._curve: StepTimeCurve | None = None
        self._slope = SlopeEstimator()
        self._sampler = SamplerTimeEstimator()

    @property
    def slope_ms(self) -> float:
        """Measured time per query token beyond the curve; a negative one counts as 0 in the budget."""
        return self._slope.slope_ms

    @property
    def sampler_fallback_ms(self) -> float | None:
        """Sampler time of numbers of sequences not seen often enough; None before five steps."""
        return self._sampler.fallback_ms

    def set_step_time_curve(self, points: Sequence[tuple[int, float]]) -> None:
        """Take a measured curve; what was learned against an earlier one is forgotten. Raises ConfigError."""
        self._curve = StepTimeCurve(points)
        self._slope = SlopeEstimator()

    def record_step_time(self, num_rows: int, graph_size: int, forward_ms: float, sampler_ms: float) -> None:
        """Learn from a step: num_rows sequences in a graph of graph_size query tokens.

        Raises ValueError for sizes below 1, a graph beyond the curve, and times that are negative or not finite.
        """
        for name, size in (("num_rows", num_rows), ("graph_size", graph_size)):
            if index(size) < 1:
                raise ValueError(f"{name} is {size}; at least 1 is needed")
        for name, time_ms in (("forward_ms", forward_ms), ("sampler_ms", sampler_ms)):
            if not (math.isfinite(time_ms) and time_ms >= 0):
                raise ValueError(f"{name} is {time_ms}; it must be finite and at least 0")
        if self._curve is not None:
            if graph_size > self._curve.largest:
                raise ValueError(f"graph_size is {graph_size}; the largest graph of the curve is {self._curve.largest}")
            self._slope.add(graph_size, (forward_ms - self._curve.time_ms(graph_size)) / graph_size)
        self._sampler.add(num_rows, sampler_ms)

    def verify_lengths(
        self, budget_survival: Sequence[NDArray[np.float32]], split_survival: Sequence[NDArray[np.float32]]
    ) -> NDArray[np.int32]:
        """Query length of each of N sequences, int32 [N]: 1 + drafts to verify.

        Both lists: N arrays, float32 [drafts of the sequence], non-increasing in 0..1. Raises ValueError for anything
        else, and when the largest graph does not hold one token per sequence.
        """
        budget, split = flatten("budget_survival", budget_survival), flatten("split_survival", split_survival)
        check_same_drafts(budget, split)
        num_rows = len(split.num_drafts)
        if self._curve is None or num_rows == 0:
            return 1 + split.num_drafts
        return _split(self._best_total(num_rows, budget.values, self._curve) - num_rows, split)

    def _best_total(self, num_rows: int, survival: NDArray[np.float32], curve: StepTimeCurve) -> int:
        """The smallest B with the largest E(B) / time(B)."""
        best_first = np.sort(survival)[::-1]
        expected = np.add.accumulate(np.concatenate([np.full(1, num_rows, np.float32), best_first]), dtype=np.float32)
        totals = np.arange(num_rows, num_rows + len(expected))
        totals = totals[totals <= curve.largest]
        if len(totals) == 0:
            raise ValueError(
                f"{num_rows} sequences are more than the largest graph of the curve holds, {curve.largest}"
            )
        with np.errstate(over="ignore"):  # a step that takes next to nothing
            throughput = expected[: len(totals)].astype(np.float64) / self._step_times(num_rows, curve, totals)
        return int(totals[np.argmax(throughput)])

    def _step_times(self, num_rows: int, curve: StepTimeCurve, totals: NDArray[np.int64]) -> NDArray[np.float64]:
        slope_ms = max(0.0, self.slope_ms)
        sampler_ms = self._sampler.time_ms(num_rows)
        by_graph = np.array([base_ms + slope_ms * size + sampler_ms for size, base_ms in curve])
        return by_graph[np.searchsorted(curve.sizes, totals)]


def _split(num_verified: int, survival: Survival) -> NDArray[np.int32]:
    """1 + how many of the num_verified likeliest drafts each row has; of equals the lower row goes first."""
    winners = np.argsort(-survival.values, kind="stable")[:num_verified]
    return 1 + np.bincount(survival.row_of[winners], minlength=len(survival.num_drafts)).astype(np.int32)
