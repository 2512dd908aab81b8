"""Survival as the budget takes it: rows checked, laid end to end, and where each begins."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

import numpy as np
from numpy.typing import NDArray

from thalweg.dspark._checks import require_array

FloatRow = NDArray[np.float32]


@dataclass(frozen=True, slots=True)
class Survival:
    """The drafts of N sequences, one sequence after the other."""

    values: FloatRow
    """float32 [D]"""
    row_of: NDArray[np.int64]
    """[D] sequence of each draft."""
    num_drafts: NDArray[np.int32]
    """[N]"""


def flatten(name: str, rows: Sequence[FloatRow]) -> Survival:
    """Lay rows end to end. Raises ValueError, naming the place, for what cannot be survival."""
    for i, row in enumerate(rows):
        require_array(f"{name}[{i}]", row, np.float32, num_dimensions=1)
    num_drafts = np.array([len(row) for row in rows], np.int32)
    row_of = np.repeat(np.arange(len(rows)), num_drafts)
    survival = Survival(np.concatenate([np.empty(0, np.float32), *rows]), row_of, num_drafts)
    _check_values(name, rows, survival)
    return survival


def _check_values(name: str, rows: Sequence[FloatRow], survival: Survival) -> None:
    values, row_of = survival.values, survival.row_of
    # Written so that a NaN fails.
    outside = ~((values >= 0) & (values <= 1))
    increases = np.zeros(len(values), bool)
    increases[1:] = (values[1:] > values[:-1]) & (row_of[1:] == row_of[:-1])
    wrong = outside | increases
    if not wrong.any():
        return
    at = int(wrong.argmax())
    i = int(row_of[at])
    j = at - int(survival.num_drafts[:i].sum())
    if outside[at]:
        raise ValueError(f"{name}[{i}][{j}] is {values[at]}; survival is a number from 0 to 1")
    raise ValueError(f"{name}[{i}] goes from {rows[i][j - 1]} to {values[at]} at draft {j}; survival never increases")


def check_same_drafts(budget: Survival, split: Survival) -> None:
    """Raise ValueError unless both describe as many drafts of as many sequences."""
    first, second = budget.num_drafts, split.num_drafts
    if len(first) != len(second):
        raise ValueError(
            f"budget_survival has {len(first)} rows and split_survival {len(second)}; they must be as many"
        )
    if (first != second).any():
        i = int((first != second).argmax())
        raise ValueError(
            f"budget_survival[{i}] has {first[i]} drafts and split_survival[{i}] {second[i]}; they must be as many"
        )
