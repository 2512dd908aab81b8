"""Both verification budgets under one roof, each with its choice of the round."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np
from numpy.typing import NDArray

from thalweg.dspark import ThroughputBudget
from thalweg.scheduler import VerifyBudget, _core
from thalweg.scheduler.reference import survival

Rows = Sequence[Sequence[float]]


@dataclass(frozen=True)
class BudgetKind:
    Budget: Callable[[], Any]
    survival_for_step: Callable[..., tuple[NDArray[np.float32], NDArray[np.float32]]]
    running_product: Callable[[NDArray[np.float32]], NDArray[np.float32]]

    def with_curve(self, *points: tuple[int, float]) -> Any:
        budget = self.Budget()
        budget.set_step_time_curve(points)
        return budget


BUDGETS = {
    "numpy": BudgetKind(ThroughputBudget, survival.survival_for_step, survival.running_product),
    "native": BudgetKind(VerifyBudget, _core.survival_for_step, _core.running_product),
}


def float_rows(rows: Rows) -> list[NDArray[np.float32]]:
    return [np.array(row, np.float32) for row in rows]


def lengths(budget: Any, rows: Rows, split_rows: Rows | None = None) -> list[int]:
    """Verify lengths of survival given as plain lists; the split looks at the same round unless told otherwise."""
    result = budget.verify_lengths(float_rows(rows), float_rows(rows if split_rows is None else split_rows))
    assert result.dtype == np.int32
    return [int(length) for length in result]
