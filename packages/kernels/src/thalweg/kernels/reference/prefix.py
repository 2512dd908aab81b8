"""How much of the order of a row the filters keep.

Order: by logit, the lower id first among equals. top-p, top-k and min-p each keep a prefix of it, so the shortest wins.
Masses of tokens are rounded to whole numbers, whose sums have no rounding: they are the same in any order, for any part
of a row, and on any device. Letters: n rows, V vocabulary.
"""

from __future__ import annotations

from dataclasses import dataclass

import torch
from torch import Tensor

from thalweg.kernels.reference.numerics import sum_last
from thalweg.kernels.reference.vocabulary_rows import largest_values

SHORT_ROW = 4096
"""Rows of at most so many tokens are sorted as a whole at once."""
FIRST_SHARE = 16
"""Of longer ones one part in so many is sorted first, where that can save work."""

MASS_ELEMENTS = 1 << 17
"""Masses of whole rows that the CPU has in memory at a time."""


@dataclass(frozen=True, slots=True)
class Filters:
    """The filters of rows after temperature."""

    top_p: Tensor
    """float [n] 1 = off."""
    top_k: Tensor
    """int [n] below 1 = off."""
    min_p: Tensor
    """float [n] 0 = off."""

    def active(self, vocabulary: int) -> Tensor:
        """Rows bool [n] of which something may be dropped."""
        return (self.top_p < 1) | ((self.top_k > 0) & (self.top_k < vocabulary)) | (self.min_p > 0)

    def of(self, rows: Tensor) -> Filters:
        """Those of some rows, int64 [m] or bool [n]."""
        return Filters(self.top_p[rows], self.top_k[rows], self.min_p[rows])


@dataclass(frozen=True, slots=True)
class Prefix:
    """What each row keeps."""

    last: Tensor
    """[n, 1] the smallest logit."""
    count: Tensor
    """int64 [n, 1] number of tokens, at least 1."""
    log_total: Tensor
    """float64 [n, 1] log of the sum of the exponentials."""


def find_prefix(logits: Tensor, filters: Filters) -> Prefix:
    """The prefix of each row of logits [n, V] after temperature. Reads nothing back, except on the CPU.

    Of rows whose largest logit is not finite, the prefix means nothing.
    """
    vocabulary = logits.shape[1]
    on_cpu = logits.device.type == "cpu"
    largest = logits.amax(-1, keepdim=True).double()
    if not on_cpu or bool((filters.top_p < 1).any()):
        limit = filters.top_p.double()[:, None] * _total(logits, largest)[:, None]
        limit.masked_fill_(filters.top_p[:, None] >= 1, torch.inf)
    else:
        limit = torch.full_like(largest, torch.inf)
    width = vocabulary // FIRST_SHARE if on_cpu and vocabulary > SHORT_ROW else vocabulary
    prefix = _prefix_within(largest_values(logits, width), largest, limit, filters, vocabulary)
    if width < vocabulary:
        k = filters.top_k[:, None]
        wants_more = (prefix.count == width) & ((k <= 0) | (k > width))
        for row in torch.nonzero(wants_more.squeeze(1)):  # one at a time: whole rows in float64 fill the cache
            ordered = largest_values(logits[row], vocabulary)
            whole = _prefix_within(ordered, largest[row], limit[row], filters.of(row), vocabulary)
            for name in Prefix.__slots__:
                getattr(prefix, name)[row] = getattr(whole, name)
    return prefix


def _prefix_within(ordered: Tensor, largest: Tensor, limit: Tensor, filters: Filters, vocabulary: int) -> Prefix:
    """The prefix, or what of it lies in `ordered` [n, width], the largest logits in order.

    limit: float64 [n, 1], the mass at which top-p stops.
    """
    width = ordered.shape[1]
    shares = _shares(ordered, largest).neg_()  # they fall along the row, so the negative ones rise
    probable = torch.searchsorted(shares, -filters.min_p.double()[:, None], right=True)
    sums = _masses_(shares.neg_(), vocabulary).cumsum_(-1)
    count = torch.minimum(torch.searchsorted(sums, limit, right=True) + 1, probable)
    k = filters.top_k.long()[:, None]
    count = torch.where(k > 0, torch.minimum(count, k), count).clamp_(1, width)
    total = sums.gather(1, count - 1) / _unit(vocabulary)
    return Prefix(ordered.gather(1, count - 1), count, largest + torch.log(total))


def _total(logits: Tensor, largest: Tensor) -> Tensor:
    """Mass float64 [n] of whole rows."""
    num_rows, vocabulary = logits.shape
    total = largest.new_empty(num_rows)
    size = max(1, MASS_ELEMENTS // vocabulary) if logits.device.type == "cpu" else max(1, num_rows)
    for start in range(0, num_rows, size):
        part = slice(start, start + size)
        total[part] = sum_last(_masses_(_shares(logits[part], largest[part]), vocabulary))
    return total


def _unit(vocabulary: int) -> float:
    """Mass of the most probable token: so large that the sum of a row still fits into float64 exactly."""
    return 2.0 ** (52 - (vocabulary - 1).bit_length())


def _shares(logits: Tensor, largest: Tensor) -> Tensor:
    """Probabilities float64, like logits, relative to the most probable token. Works in one piece of memory: several
    large ones at a time cost more in new pages than in arithmetic."""
    return logits.to(torch.float64, copy=True).sub_(largest).exp_()


def _masses_(shares: Tensor, vocabulary: int) -> Tensor:
    """Whole numbers float64, in the place of the shares."""
    return shares.mul_(_unit(vocabulary)).round_()
