"""What became of the drafts that were verified: counts by position, and how far confidences were off."""

from __future__ import annotations

from typing import Any

import numpy as np
from numpy.typing import NDArray

from thalweg.dspark._checks import require_array, require_draft_length, require_integers


class AcceptanceStatistics:
    """Running sums over the rows that are added: one row per sequence and decode step."""

    def __init__(self, draft_length: int) -> None:
        """Raises ConfigError for a draft length that is no integer from 1 to 1024."""
        require_draft_length(draft_length)
        self.draft_length = draft_length
        self.num_rows = 0
        self.verified_by_position: NDArray[np.int64] = np.zeros(draft_length, np.int64)
        """[G] rows in which this draft was verified."""
        self.accepted_by_position: NDArray[np.int64] = np.zeros(draft_length, np.int64)
        """[G] rows in which this draft and all before it were accepted."""
        self.confidence_error_sum = 0.0
        """Sum of |acceptance probability - confidence| over the verified drafts for which both are known."""
        self.num_confidence_errors = 0

    def add(
        self,
        num_verified: NDArray[np.integer[Any]],
        num_accepted: NDArray[np.integer[Any]],
        confidences: NDArray[np.float32] | None = None,
        accept_probs: NDArray[np.float32] | None = None,
    ) -> None:
        """Count N rows.

        num_verified, num_accepted: integers [N]; drafts verified, 0 to G, and how many of them hold from the first on.
        confidences, accept_probs: float32 [N, G], what the drafter expected and what the verification found; NaN is
        unknown, and places beyond the verified ones are not read. Raises ValueError, and counts nothing, for anything
        else.
        """
        self._check_counts(num_verified, num_accepted)
        positions = np.arange(self.draft_length)
        is_verified = positions < num_verified[:, None]
        errors = self._confidence_errors(is_verified, confidences, accept_probs)
        self.num_rows += len(num_verified)
        self.verified_by_position += is_verified.sum(axis=0)
        self.accepted_by_position += (positions < num_accepted[:, None]).sum(axis=0)
        self.confidence_error_sum += float(errors.sum())
        self.num_confidence_errors += len(errors)

    @property
    def accept_rates(self) -> NDArray[np.float64]:
        """[G] of the rows that verified this draft, the share that accepted it; NaN where none did."""
        rates = np.full(self.draft_length, np.nan)
        is_seen = self.verified_by_position > 0
        rates[is_seen] = self.accepted_by_position[is_seen] / self.verified_by_position[is_seen]
        return rates

    @property
    def accept_rate(self) -> float | None:
        """Share of the verified drafts that were accepted; None before any was verified."""
        return _quotient(self.accepted_by_position.sum(), self.verified_by_position.sum())

    @property
    def verified_length(self) -> float | None:
        """Drafts verified per row; None before any row."""
        return _quotient(self.verified_by_position.sum(), self.num_rows)

    @property
    def accepted_length(self) -> float | None:
        """Tokens committed per row, the target's own included; None before any row."""
        return _quotient(self.num_rows + self.accepted_by_position.sum(), self.num_rows)

    @property
    def confidence_error(self) -> float | None:
        """Mean |acceptance probability - confidence|; None while neither is known of any verified draft."""
        return _quotient(self.confidence_error_sum, self.num_confidence_errors)

    def _check_counts(self, num_verified: NDArray[Any], num_accepted: NDArray[Any]) -> None:
        require_integers("num_verified", num_verified)
        require_integers("num_accepted", num_accepted)
        if len(num_verified) != len(num_accepted):
            raise ValueError(f"there are {len(num_verified)} num_verified and {len(num_accepted)} num_accepted")
        for name, counts, most in (
            ("num_verified", num_verified, np.full(len(num_verified), self.draft_length)),
            ("num_accepted", num_accepted, num_verified),
        ):
            is_wrong = (counts < 0) | (counts > most)
            if is_wrong.any():
                i = int(is_wrong.argmax())
                raise ValueError(f"{name}[{i}] is {counts[i]}; it must be from 0 to {most[i]}")

    def _confidence_errors(
        self,
        is_verified: NDArray[np.bool_],
        confidences: NDArray[np.float32] | None,
        accept_probs: NDArray[np.float32] | None,
    ) -> NDArray[np.float64]:
        if confidences is None or accept_probs is None:
            return np.empty(0)
        for name, values in (("confidences", confidences), ("accept_probs", accept_probs)):
            require_array(name, values, np.float32, num_dimensions=2)
            if values.shape != is_verified.shape:
                raise ValueError(f"{name} has shape {values.shape}; {is_verified.shape} is needed")
            is_wrong = is_verified & ((values < 0) | (values > 1))
            if is_wrong.any():
                row, draft = np.argwhere(is_wrong)[0]
                raise ValueError(f"{name}[{row}][{draft}] is {values[row, draft]}; it must be from 0 to 1, or NaN")
        errors = np.abs(accept_probs.astype(np.float64) - confidences)[is_verified]
        return errors[~np.isnan(errors)]


def _quotient(total: float, count: float) -> float | None:
    return float(total) / float(count) if count else None
