"""Batches to plan with: what the drafter says of its drafts, and what becomes of them."""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import dataclass
from typing import Protocol

import numpy as np
from numpy.typing import NDArray

from thalweg.dspark._checks import is_real, require_array, require_draft_length
from thalweg.dspark.records import ConfidenceRecords
from thalweg.dspark.scaling import survival_at
from thalweg.interfaces import ConfigError, shown

MIN_CONCENTRATION = 0.01
MAX_CONCENTRATION = 1e9
"""Requests of a larger one are alike for all that matters."""


@dataclass(frozen=True, slots=True)
class Batches:
    """B batches of N sequences with G drafts each."""

    survival: NDArray[np.float32]
    """[B, N, G] what the budget sees; never increases along a sequence."""
    held: NDArray[np.float64]
    """[B, N, G] accepted tokens that verifying this draft brings: 0 or 1 as it happened, or its chance."""


class Workload(Protocol):
    """Requests like those that will be served."""

    @property
    def draft_length(self) -> int: ...

    def draw(self, random: np.random.Generator, num_batches: int, num_sequences: int) -> Batches:
        """Independent batches."""


class BetaWorkload:
    """Requests that accept each draft with a chance of their own, drawn from a Beta distribution.

    Its confidences are that chance, so they are perfectly calibrated.
    """

    def __init__(self, accept_rate: float, draft_length: int, concentration: float = math.inf) -> None:
        """accept_rate: mean chance. concentration: Beta(rate * concentration, (1 - rate) * concentration); the smaller,
        the more requests differ, infinite = all alike. Raises ConfigError for values that make no such distribution.
        """
        if not is_real(accept_rate) or not 0 <= accept_rate <= 1:
            raise ConfigError(f"accept_rate is {shown(accept_rate)}; a number from 0 to 1 is needed")
        require_draft_length(draft_length)
        if not is_real(concentration) or not concentration >= MIN_CONCENTRATION:
            raise ConfigError(f"concentration is {shown(concentration)}; at least {MIN_CONCENTRATION} is needed")
        self.draft_length = draft_length
        self._accept_rate = float(accept_rate)
        self._concentration = float(concentration)

    def draw(self, random: np.random.Generator, num_batches: int, num_sequences: int) -> Batches:
        chances = self._chances(random, (num_batches, num_sequences, 1))
        survival = np.cumprod(np.repeat(chances, self.draft_length, axis=2), axis=2, dtype=np.float64)
        return Batches(survival.astype(np.float32), survival)

    def _chances(self, random: np.random.Generator, shape: tuple[int, ...]) -> NDArray[np.float64]:
        is_certain = self._accept_rate in (0, 1) or self._concentration > MAX_CONCENTRATION
        if is_certain:
            return np.full(shape, self._accept_rate)
        accepted = self._accept_rate * self._concentration
        return random.beta(accepted, self._concentration - accepted, size=shape)


class MeasuredWorkload:
    """Rows that were measured, drawn with replacement."""

    def __init__(self, survival: NDArray[np.float64], held: NDArray[np.float64]) -> None:
        """Both float64 [R, G] as in `Batches`. Raises ConfigError for no rows, ValueError for other arrays."""
        for name, values in (("survival", survival), ("held", held)):
            require_array(name, values, np.float64, num_dimensions=2)
            if not values.size or values.shape != survival.shape:
                raise ConfigError(f"{name} has shape {values.shape}; rows of drafts, as many in both, are needed")
            # Written so that a NaN fails.
            if not ((values >= 0) & (values <= 1)).all() or (np.diff(values, axis=1) > 0).any():
                raise ConfigError(f"{name} has rows that are not numbers from 0 to 1, or that increase")
        self._survival = survival.astype(np.float32)
        self._held = held

    @property
    def draft_length(self) -> int:
        return int(self._held.shape[1])

    def draw(self, random: np.random.Generator, num_batches: int, num_sequences: int) -> Batches:
        rows = random.integers(len(self._held), size=(num_batches, num_sequences))
        return Batches(self._survival[rows], self._held[rows])

    def first(self, draft_length: int) -> MeasuredWorkload:
        """The same with the first drafts alone. Raises ConfigError when there are not as many."""
        if not 1 <= draft_length <= self.draft_length:
            raise ConfigError(f"draft_length is {draft_length}; the data has 1 to {self.draft_length}")
        return MeasuredWorkload(self._survival[:, :draft_length].astype(np.float64), self._held[:, :draft_length])


def workload_of_records(records: ConfidenceRecords, temperatures: Sequence[float]) -> MeasuredWorkload:
    """Confidences at these temperatures, one per position, and what was accepted.

    Rows with fewer drafts verified than the others are left out. Raises ConfigError when none is left or the
    temperatures are not as many as the drafts.
    """
    if len(temperatures) != records.draft_length:
        raise ConfigError(f"there are {len(temperatures)} temperatures for {records.draft_length} drafts")
    is_whole = records.num_verified == records.draft_length
    if not is_whole.any():
        raise ConfigError(f"no record has all {records.draft_length} drafts verified")
    held = np.arange(records.draft_length) < records.num_accepted[is_whole, None]
    return MeasuredWorkload(survival_at(records.confidences[is_whole], temperatures), held.astype(np.float64))
