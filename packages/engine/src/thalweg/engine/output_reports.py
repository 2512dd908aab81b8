"""What a step says about its tokens beside their ids, as users get it."""

from __future__ import annotations

from collections.abc import Mapping, Sequence

import numpy as np
from numpy.typing import NDArray

from thalweg.engine.row_reports import RowDraws, RowLogprobs
from thalweg.interfaces import InvariantError, TokenDraw

LOWEST_LOGPROB = -9999.0
"""Stands for everything below it, so that no user meets an infinity."""


class LogprobReport:
    """The log-probabilities that a step reports, by sequence."""

    def __init__(self, rows: RowLogprobs) -> None:
        self._offsets = rows.offsets
        self._token_ids = rows.token_ids
        self._logprobs = np.maximum(rows.logprobs, LOWEST_LOGPROB)
        self._top_ids = rows.top_ids
        self._top_logprobs = np.maximum(rows.top_logprobs, LOWEST_LOGPROB)

    def count(self, sequence: int) -> int:
        """How many tokens of a sequence were reported."""
        return int(self._offsets[sequence + 1] - self._offsets[sequence])

    def take(self, sequence: int, token_ids: Sequence[int], num_alternatives: int) -> list[Mapping[int, float]]:
        """For each of these tokens, the first of the sequence in this step: its alternatives and itself.

        From the most likely on, the lower id first among equals. Raises InvariantError unless these are the tokens
        that were reported.
        """
        start = int(self._offsets[sequence])
        rows = slice(start, start + len(token_ids))
        reported = self._token_ids[rows].tolist()
        if self.count(sequence) < len(token_ids) or reported != list(token_ids):
            raise InvariantError(f"log-probabilities are those of tokens {reported}, not of {list(token_ids)}")
        return [
            _alternatives(*entry)
            for entry in zip(
                reported,
                self._logprobs[rows].tolist(),
                self._top_ids[rows, :num_alternatives].tolist(),
                self._top_logprobs[rows, :num_alternatives].tolist(),
                strict=True,
            )
        ]


class DrawReport:
    """How a step drew its tokens, by sequence."""

    def __init__(self, rows: RowDraws) -> None:
        self._rows = rows

    def take(self, sequence: int, count: int) -> list[TokenDraw]:
        """Of the first tokens of the sequence in this step. Raises InvariantError unless so many were reported."""
        start, end = self._rows.offsets[sequence : sequence + 2].tolist()
        if end - start < count:
            raise InvariantError(f"{end - start} draws were reported for {count} tokens")
        rows = slice(start, start + count)
        return [
            TokenDraw(*entry)
            for entry in zip(
                self._rows.sum_smaller_probs[rows].tolist(),
                _known(self._rows.draft_logprobs[rows]),
                _known(self._rows.accept_probs[rows]),
                strict=True,
            )
        ]


def _alternatives(
    token_id: int, logprob: float, top_ids: Sequence[int], top_logprobs: Sequence[float]
) -> Mapping[int, float]:
    found = dict(zip(top_ids, top_logprobs, strict=True))
    is_ordered = not found or (top_logprobs[-1] > LOWEST_LOGPROB and (top_logprobs[-1] > logprob or token_id in found))
    found.setdefault(token_id, logprob)
    return found if is_ordered else dict(sorted(found.items(), key=lambda entry: (-entry[1], entry[0])))


def _known(values: NDArray[np.float32]) -> list[float | None]:
    return [None if value != value else value for value in values.tolist()]
