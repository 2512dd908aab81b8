"""What the budget demands of survival, checked row by row so that a message can name the place."""

from __future__ import annotations

from collections.abc import Sequence

import numpy as np
from numpy.typing import NDArray


def check_survival(budget: Sequence[NDArray[np.float32]], split: Sequence[NDArray[np.float32]]) -> None:
    """Raise ValueError unless both lists describe the same drafts with numbers that can be survival."""
    if len(budget) != len(split):
        raise ValueError(
            f"budget_survival has {len(budget)} rows and split_survival {len(split)}; they must be as many"
        )
    for name, rows in (("budget_survival", budget), ("split_survival", split)):
        for i, row in enumerate(rows):
            _check_row(f"{name}[{i}]", row)
    for i, (first, second) in enumerate(zip(budget, split, strict=True)):
        if len(first) != len(second):
            raise ValueError(
                f"budget_survival[{i}] has {len(first)} drafts and split_survival[{i}] {len(second)}; "
                "they must be as many"
            )


def _check_row(name: str, row: NDArray[np.float32]) -> None:
    if not isinstance(row, np.ndarray) or row.dtype != np.float32 or row.ndim != 1:
        found = f"{row.dtype} array of shape {row.shape}" if isinstance(row, np.ndarray) else type(row).__name__
        raise ValueError(f"{name} is a {found}; a float32 array of one dimension is needed")
    # Written so that a NaN fails.
    outside = ~((row >= 0) & (row <= 1))
    if outside.any():
        j = int(outside.argmax())
        raise ValueError(f"{name}[{j}] is {row[j]}; survival is a number from 0 to 1")
    increases = row[1:] > row[:-1]
    if increases.any():
        j = int(increases.argmax())
        raise ValueError(f"{name} goes from {row[j]} to {row[j + 1]} at draft {j + 1}; survival never increases")
