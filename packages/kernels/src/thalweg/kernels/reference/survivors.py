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

    rows: Tensor
    """int64 [S]"""
    ids: Tensor
    """int64 [S]"""
    logprobs: Tensor
    """float32 [S]"""
    counts: Tensor
    """int64 [n]"""

    def padded(self) -> tuple[Tensor, Tensor]:
        """(ids int64 [n, c], log-probabilities float32 [n, c]) with -inf behind the survivors of a row."""
        num_rows, widest = self.counts.numel(), max(1, int(self.counts.max()))
        if self.ids.numel() == num_rows * widest:
            return self.ids.view(num_rows, widest), self.logprobs.view(num_rows, widest)
        first = self.counts.cumsum(0) - self.counts
        places = self.rows, torch.arange(self.ids.numel()) - first[self.rows]
        ids = self.ids.new_zeros(num_rows, widest)
        logprobs = self.logprobs.new_full((num_rows, widest), -torch.inf)
        return ids.index_put_(places, self.ids), logprobs.index_put_(places, self.logprobs)


def find_survivors(logits: Tensor, filters: Filters) -> Survivors:
    """Of logits float32 [n, V] after temperature, on the CPU."""
    num_rows, vocabulary = logits.shape
    prefix = find_prefix(logits, filters)
    flat, counts = first_places(logits, prefix.last, prefix.count)
    kept = logits.reshape(-1)[flat].double()
    if num_rows == 1:
        return Survivors(torch.zeros_like(flat), flat, kept.sub_(prefix.log_total[0]).float(), counts)
    rows = torch.repeat_interleave(torch.arange(num_rows), counts)
    logprobs = kept.sub_(prefix.log_total.squeeze(1)[rows]).float()
    return Survivors(rows, flat - rows * vocabulary, logprobs, counts)
