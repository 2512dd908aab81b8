"""The tokens that may be drawn, as short lists: on the CPU, work on them replaces work on the whole vocabulary.

Letters: n rows, V vocabulary, S survivors of all rows together, c most survivors of a row.
"""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass

import torch
from torch import Tensor

from thalweg.kernels.reference.prefix import Filters, find_prefix
from thalweg.kernels.reference.vocabulary_rows import first_places

LONG_LIST = 8192
"""Longer lists of survivors are worth a call of their own."""


@dataclass(frozen=True, slots=True)
class Survivors:
    """Row after row, in ascending order of their ids."""

    places: Tensor
    """int64 [S] row * V + id."""
    logprobs: Tensor
    """float32 [S]"""
    counts: Tensor
    """int64 [n]"""
    vocabulary: int

    def dense(self) -> Tensor:
        """Log-probabilities float32 [n, V], -inf of all other tokens."""
        result = self.logprobs.new_full((self.counts.numel(), self.vocabulary), -torch.inf)
        result.view(-1)[self.places] = self.logprobs
        return result

    def lists(self) -> Iterator[tuple[slice, Tensor, Tensor]]:
        """(rows, ids int64 [m, c], log-probabilities float32 [m, c]) of m rows; c is at least 1.

        Short lists come together, with -inf behind the survivors of a row; long ones one by one.
        """
        num_rows = self.counts.numel()
        is_short = num_rows > 1 and int(self.counts.max()) <= LONG_LIST
        if is_short or 0 in self.counts:
            yield slice(None), *self._padded()
            return
        last = 0
        for row, count in enumerate(self.counts.tolist()):
            first, last = last, last + count
            ids = self.places[first:last] - row * self.vocabulary
            yield slice(row, row + 1), ids[None], self.logprobs[None, first:last]

    def _padded(self) -> tuple[Tensor, Tensor]:
        widest, first = max(1, int(self.counts.max())), self.counts.cumsum(0) - self.counts
        rows = torch.repeat_interleave(torch.arange(self.counts.numel()), self.counts)
        cells = rows, torch.arange(rows.numel()) - first[rows]
        ids = self.places.new_zeros(self.counts.numel(), widest)
        logprobs = self.logprobs.new_full(ids.shape, -torch.inf)
        return ids.index_put_(cells, self.places - rows * self.vocabulary), logprobs.index_put_(cells, self.logprobs)


def find_survivors(logits: Tensor, filters: Filters) -> Survivors:
    """Of logits float32 [n, V] after temperature, on the CPU."""
    prefix = find_prefix(logits, filters)
    places, counts = first_places(logits, prefix.last, prefix.count)
    log_total = prefix.log_total[0] if counts.numel() == 1 else prefix.log_total.repeat_interleave(counts)
    logprobs = logits.reshape(-1)[places].double().sub_(log_total).float()
    return Survivors(places, logprobs, counts, logits.shape[1])
