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


def decide_random_step(seed: int, num_rows: int | None = None) -> dict[str, Any]:
    """What both budgets answer to the same random curve, history and survival: lengths or an error, and estimates."""
    generator = np.random.default_rng(seed)
    num_rows = num_rows or int(generator.integers(1, 60))
    draft_length = int(generator.integers(0, 8))
    widths = np.full(num_rows, draft_length)
    if generator.random() < 0.5:
        widths = generator.integers(0, draft_length + 1, num_rows)
    num_levels = int(generator.choice([2, 4, 16, 1_000_000]))
    survival = [[_random_row(generator, int(width), num_levels) for width in widths] for _ in range(2)]
    largest = num_rows * (draft_length + 2)
    sizes = np.unique(generator.integers(max(1, num_rows - 1), largest + 1, int(generator.integers(1, 30))))
    times_ms = 10 + np.cumsum(generator.choice([0.0, 0.25, 1.0, generator.random()], len(sizes)))
    if generator.random() < 0.3:
        generator.shuffle(times_ms)
    curve = list(zip(sizes.tolist(), times_ms.tolist(), strict=True))
    steps = [
        (
            num_rows + int(generator.integers(2)),
            int(generator.choice(sizes)),
            float(generator.choice(times_ms) + generator.normal() ** 2),
            float(3 * generator.random()),
        )
        for _ in range(int(generator.integers(0, 60)))
    ]
    return {name: _decide(kind.with_curve(*curve), steps, survival) for name, kind in BUDGETS.items()}


def _random_row(generator: np.random.Generator, width: int, num_levels: int) -> NDArray[np.float32]:
    """Few levels make ties; 0 and 1 are among them."""
    confidences = np.clip(np.round(generator.uniform(0.2, 1.05, width) * num_levels) / num_levels, 0, 1)
    return np.multiply.accumulate(confidences.astype(np.float32), dtype=np.float32)


def _decide(budget: Any, steps: Sequence[tuple[int, int, float, float]], survival: Sequence[Any]) -> tuple[Any, ...]:
    for step in steps:
        budget.record_step_time(*step)
    try:
        answer: Any = budget.verify_lengths(*survival).tolist()
    except ValueError as error:
        answer = str(error)
    return answer, budget.slope_ms, budget.sampler_fallback_ms
