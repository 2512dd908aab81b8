"""The token side of a prefill step: ids, positions and n-gram windows of every query row, in numpy.

Letters: N sequences, T query tokens, R look-back of a plan (its current token included), G n-gram columns.
"""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np
from numpy.typing import NDArray

from thalweg.interfaces import StepPlan

IMAGE_MARK = -7
"""Compressed id of a token that belongs to an image."""


@dataclass(frozen=True, slots=True)
class CompressedVocabulary:
    """The map of token ids that the n-gram tables are keyed with."""

    ids: NDArray[np.int64]
    """[V] compressed id of each token id; ids from V up belong to images."""
    pad_id: int
    """What stands for a position that an n-gram may not look at."""
    max_ngram_size: int

    @staticmethod
    def none() -> CompressedVocabulary:
        """For a model without n-gram tables: windows of the token alone, never read."""
        return CompressedVocabulary(np.zeros(0, np.int64), 0, 1)

    def compress(self, token_ids: NDArray[np.int32] | NDArray[np.int64]) -> NDArray[np.int64]:
        """Compressed ids, shaped like token_ids: the pad for -1, `IMAGE_MARK` for tokens of images."""
        size = self.ids.size
        compressed = np.full(token_ids.shape, self.pad_id, np.int64)
        known = (token_ids >= 0) & (token_ids < size)
        compressed[known] = self.ids[token_ids[known]]
        compressed[token_ids >= size] = IMAGE_MARK
        return compressed


@dataclass(frozen=True, slots=True)
class TokenRows:
    """The query rows of a step."""

    token_ids: NDArray[np.int64]
    """[T]"""
    positions: NDArray[np.int64]
    """[T] absolute positions from 0."""
    ngram_ids: NDArray[np.int64]
    """[T, G] compressed ids, newest first; the pad where a column is blocked."""


def build_token_rows(plan: StepPlan, vocabulary: CompressedVocabulary) -> TokenRows:
    """The query rows of a prefill plan: chunks of prompts.

    A window looks back until the start of the sequence or an image, which blocks itself and all that lies before it.
    """
    counts = plan.query_lengths.astype(np.int64)
    sequence_rows = np.repeat(np.arange(counts.size), counts)
    first_rows = np.cumsum(counts) - counts
    steps = np.arange(sequence_rows.size) - first_rows[sequence_rows]
    positions = (plan.context_lengths - counts)[sequence_rows] + steps
    token_ids = plan.token_ids.astype(np.int64)
    ngrams = _ngram_windows(plan.tail_token_ids, token_ids, sequence_rows, counts, vocabulary)
    return TokenRows(token_ids, positions, ngrams)


def _ngram_windows(
    tails: NDArray[np.int32],
    token_ids: NDArray[np.int64],
    sequence_rows: NDArray[np.int64],
    counts: NDArray[np.int64],
    vocabulary: CompressedVocabulary,
) -> NDArray[np.int64]:
    """Windows over one line of tokens: for each sequence its look-back (without the current token), then its rows."""
    columns = vocabulary.max_ngram_size
    look_back = columns - 1
    line = np.empty(token_ids.size + look_back * counts.size, np.int64)
    row_places = np.arange(token_ids.size) + look_back * (sequence_rows + 1)
    line[row_places] = token_ids
    starts = np.cumsum(counts) - counts + look_back * np.arange(counts.size)
    history = tails[:, tails.shape[1] - columns : -1]
    line[starts[:, None] + np.arange(look_back)] = history
    windows = vocabulary.compress(line)[row_places[:, None] - np.arange(columns)]
    blocked = np.logical_or.accumulate(windows == IMAGE_MARK, axis=1)
    return np.where(blocked, vocabulary.pad_id, windows)
