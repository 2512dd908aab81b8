"""Verification budgets that decide by a script, for the scheduler core in Python."""

from __future__ import annotations

from collections.abc import Callable, Sequence

import numpy as np
from numpy.typing import NDArray

from thalweg.dspark import StepTimeCurve
from thalweg.interfaces import VerifyBudget

Survivals = Sequence[NDArray[np.float32]]


class ScriptedBudget:
    """Satisfies `thalweg.interfaces.VerifyBudget` by a function of the budget's survival; it never sees the split's."""

    def __init__(self, choose: Callable[[Survivals], NDArray[np.int32]]) -> None:
        self._choose = choose

    def set_step_time_curve(self, points: Sequence[tuple[int, float]]) -> None:
        """Needs no times."""

    def record_step_time(self, num_rows: int, graph_size: int, forward_ms: float, sampler_ms: float) -> None:
        """Learns nothing."""

    def verify_lengths(self, budget_survival: Survivals, split_survival: Survivals) -> NDArray[np.int32]:
        return self._choose(budget_survival)


def planned(lengths: Sequence[int]) -> ScriptedBudget:
    """The same length for all sequences of a step, in turn; shorter where there are fewer drafts."""
    step = -1

    def choose(survival: Survivals) -> NDArray[np.int32]:
        nonlocal step
        step += 1
        wanted = lengths[step % len(lengths)]
        return np.array([min(wanted, 1 + row.size) for row in survival], np.int32)

    return ScriptedBudget(choose)


def told_by(place: int) -> ScriptedBudget:
    """One draft is verified where the draft of this place was known, two rounds ago, to survive likely; else none."""
    return ScriptedBudget(lambda survival: np.array([1 + int(0.25 < row[place] < 1) for row in survival], np.int32))


def alone(points: Sequence[tuple[int, float]]) -> ScriptedBudget:
    """The best number of drafts for every sequence as if no other were in its step: most tokens per millisecond."""
    curve = StepTimeCurve(points)

    def choose(survival: Survivals) -> NDArray[np.int32]:
        rates = np.stack(survival)
        totals = np.arange(1, 2 + rates.shape[1])
        times = np.array([curve.time_ms(total) for total in totals.tolist()])
        first = np.ones((len(rates), 1), np.float32)
        expected = np.add.accumulate(np.concatenate((first, rates), axis=1), axis=1, dtype=np.float32)
        return (1 + np.argmax(expected.astype(np.float64) / times, axis=1)).astype(np.int32)

    return ScriptedBudget(choose)


class Peeking:
    """Satisfies `thalweg.interfaces.VerifyBudget` by another one, which it lets see the newest round: that is wrong."""

    def __init__(self, budget: VerifyBudget) -> None:
        self._budget = budget

    def set_step_time_curve(self, points: Sequence[tuple[int, float]]) -> None:
        self._budget.set_step_time_curve(points)

    def record_step_time(self, num_rows: int, graph_size: int, forward_ms: float, sampler_ms: float) -> None:
        """Learns nothing."""

    def verify_lengths(self, budget_survival: Survivals, split_survival: Survivals) -> NDArray[np.int32]:
        return self._budget.verify_lengths(split_survival, split_survival)
