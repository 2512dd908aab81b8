"""Rows over the vocabulary: their largest entries in order, and the logarithm of their softmax.

Letters: n rows, V vocabulary.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import numpy as np
import torch
from torch import Tensor

from thalweg.kernels.reference.numerics import sum_last

PIECE_ELEMENTS = 1 << 17
"""Tokens that `in_pieces` takes at a time."""


def in_pieces(function: Callable[..., Tensor], rows: Tensor, *others: Tensor) -> Tensor:
    """function(rows, *others) of rows [n, V] and others [n], some rows at a time on the CPU.

    It must treat every row by itself. Its intermediate results then stay in the processor's cache, and in memory that
    is at hand: large ones cost more in new pages than in arithmetic.
    """
    count = max(1, PIECE_ELEMENTS // max(1, rows.shape[1]))
    if rows.device.type != "cpu" or rows.shape[0] <= count:
        return function(rows, *others)
    pieces = [slice(start, start + count) for start in range(0, rows.shape[0], count)]
    return torch.cat([function(rows[piece], *(other[piece] for other in others)) for piece in pieces])


def argmax_lowest(logits: Tensor) -> Tensor:
    """Id int32 [n] of the largest of logits [n, V], the lowest among equals; -1 where the largest is not finite."""
    if logits.device.type == "cpu" and logits.dtype in (torch.float32, torch.float64):
        token = torch.from_numpy(np.argmax(logits.numpy(), axis=-1))  # the first of several; of NaN, too
        return torch.where(torch.isfinite(logits.gather(1, token[:, None]).squeeze(1)), token, -1).int()
    best = logits.amax(-1, keepdim=True)
    token = (logits == best).to(torch.int8).argmax(-1)
    return torch.where(torch.isfinite(best.squeeze(-1)), token, -1).int()


def log_softmax(logits: Tensor) -> Tensor:
    """Log-probabilities float32 [n, V] of logits [n, V], evaluated in float64."""
    return in_pieces(_log_softmax, logits)


def _log_softmax(logits: Tensor) -> Tensor:
    value = logits.double()
    value = value - value.amax(-1, keepdim=True)
    return value.sub_(torch.log(sum_last(torch.exp(value))).unsqueeze(-1)).float()


def largest_values(logits: Tensor, count: int) -> Tensor:
    """The `count` largest of logits [n, V], from the largest to the smallest."""
    vocabulary = logits.shape[1]
    if logits.device.type != "cpu":
        if count < vocabulary:
            return torch.topk(logits, count, dim=-1).values
        return torch.sort(logits, dim=-1, descending=True).values
    negative = (-logits).numpy()  # numpy selects and sorts much faster than torch on the CPU
    if count < vocabulary:
        negative.partition(count - 1, axis=-1)
        negative = negative[:, :count]
    return torch.from_numpy(np.sort(negative, axis=-1)).neg_()


def keep_first(values: Tensor, last: Tensor, count: Tensor | int) -> Tensor:
    """The `count` largest of values [n, V], bool [n, V], the lower id first among equals.

    last: [n, 1], the smallest of them. count: int, or int64 [n, 1].
    """
    is_kept = values >= last
    if values.device.type == "cpu" and not bool((is_kept.sum(-1, keepdim=True) > count).any()):
        return is_kept
    above, equal = values > last, values == last
    return above | (equal & (equal.cumsum(-1) <= count - above.sum(-1, keepdim=True)))


def descending(logits: Tensor) -> Tensor:
    """Ids int64 [n, V] from the largest logit to the smallest, lower id first among equals."""
    if logits.device.type != "cpu" or logits.dtype != torch.float32:
        return torch.sort(logits, dim=-1, descending=True, stable=True).indices
    # Order-preserving bits of the negated logit above the id: all keys differ, and numpy sorts integers much faster.
    bits = (logits + 0.0).view(torch.int32)
    bits = ~torch.where(bits < 0, bits ^ 0x7FFFFFFF, bits)
    keys = (bits.long() << 32) | torch.arange(logits.shape[1])
    return torch.from_numpy(np.sort(keys.numpy(), axis=-1)) & 0xFFFFFFFF


OPS: dict[str, Callable[..., Any]] = {"argmax_lowest": argmax_lowest, "log_softmax": log_softmax}
