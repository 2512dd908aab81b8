"""The tokens that may be drawn, as short lists: on the CPU, work on them replaces work on the whole vocabulary.

Letters: n rows, V vocabulary, S survivors of all rows together, c most survivors of a row.
"""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np
import torch
from numpy.typing import NDArray
from torch import Tensor

from thalweg.kernels.reference.prefix import Filters, find_prefix


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
    is_kept = _keep_first(logits.numpy(), prefix.last.numpy(), prefix.count.numpy())
    counts = torch.from_numpy(np.count_nonzero(is_kept, axis=1))
    rows = torch.repeat_interleave(torch.arange(num_rows), counts)
    flat = torch.from_numpy(np.flatnonzero(is_kept))
    kept = logits.reshape(-1)[flat]
    logprobs = (kept.double() - prefix.log_total.squeeze(1)[rows]).float()
    return Survivors(rows, flat - rows * vocabulary, logprobs, counts)


def _keep_first(logits: NDArray[np.float32], last: NDArray[np.float32], count: NDArray[np.int64]) -> NDArray[np.bool_]:
    """The first `count` [n, 1] of the order of logits [n, V], bool [n, V]; last: [n, 1], the last one's logit."""
    is_kept = logits >= last
    too_many = np.count_nonzero(is_kept, axis=1, keepdims=True) - count
    if (too_many > 0).any():  # some of those that equal the last one have too high an id
        equal = logits == last
        room = np.count_nonzero(equal, axis=1, keepdims=True) - too_many
        is_kept &= ~equal | (np.cumsum(equal, axis=1) <= room)
    return is_kept
