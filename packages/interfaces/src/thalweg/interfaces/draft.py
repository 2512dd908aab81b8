"""Contracts of speculative decoding: who proposes drafts and who decides how many to verify."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING, Protocol

if TYPE_CHECKING:
    import numpy as np
    from numpy.typing import NDArray


class Drafter(Protocol):
    """Proposes the next draft_length tokens of every sequence."""

    @property
    def draft_length(self) -> int: ...

    def propose(self, anchor_token_ids: NDArray[np.int32]) -> tuple[NDArray[np.int32], NDArray[np.float32]]:
        """Draft ids and confidences, both [N, G], after the last committed token of each of N rows."""


@dataclass(frozen=True, slots=True)
class StepTimeCurve:
    """Measured decode step time over the number of query tokens."""

    sizes: tuple[int, ...]
    """Ascending graph sizes in query tokens."""
    milliseconds: tuple[float, ...]


class VerifyBudget(Protocol):
    """Spends a verification budget over the rows of a decode step."""

    def verify_lengths(self, survival: Sequence[NDArray[np.float32]], curve: StepTimeCurve) -> NDArray[np.int32]:
        """Query length of each row, 1..G+1; survival[i] are the row's cumulative acceptance probabilities."""
