"""The tokens that may be drawn, as short lists: on the CPU, work on them replaces work on the whole vocabulary.

Letters: n rows, V vocabulary, S survivors of all rows together, c most survivors of a row.
"""

from __future__ import annotations

from dataclasses import dataclass

import torch
from torch import Tensor

from thalweg.kernels.reference.prefix import Filters, find_prefix
from thalweg.kernels.reference.vocabulary_rows import first_places


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

    def padded(self) -> tuple[Tensor, Tensor]:
        """(ids int64 [n, c], log-probabilities float32 [n, c]) with -inf behind the survivors of a row; c is
        at least 1."""
        num_rows = self.counts.numel()
        if num_rows == 1 and self.places.numel():
            return self.places[None], self.logprobs[None]
        widest, first = max(1, int(self.counts.max())), self.counts.cumsum(0) - self.counts
        rows = torch.repeat_interleave(torch.arange(num_rows), self.counts)
        cells = rows, torch.arange(rows.numel()) - first[rows]
        ids = self.places.new_zeros(num_rows, widest)
        logprobs = self.logprobs.new_full((num_rows, widest), -torch.inf)
        return ids.index_put_(cells, self.places - rows * self.vocabulary), logprobs.index_put_(cells, self.logprobs)


def find_survivors(logits: Tensor, filters: Filters) -> Survivors:
    """Of logits float32 [n, V] after temperature, on the CPU."""
    prefix = find_prefix(logits, filters)
    places, counts = first_places(logits, prefix.last, prefix.count)
    log_total = prefix.log_total[0] if counts.numel() == 1 else prefix.log_total.repeat_interleave(counts)
    logprobs = logits.reshape(-1)[places].double().sub_(log_total).float()
    return Survivors(places, logprobs, counts, logits.shape[1])
