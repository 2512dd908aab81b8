"""Rows over the vocabulary: their largest entries in order, and the logarithm of their softmax.

Letters: n rows, V vocabulary.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import numpy as np
import torch
from numpy.typing import NDArray
from torch import Tensor

from thalweg.interfaces import ConfigError
from thalweg.kernels.reference.numerics import check_floats, sum_last

PIECE_ELEMENTS = 1 << 19
"""Tokens that `in_pieces` takes at a time."""


def rows_per_piece(vocabulary: int) -> int:
    """How many rows `in_pieces` takes at a time."""
    return max(1, PIECE_ELEMENTS // max(1, vocabulary))


def in_pieces(function: Callable[..., Tensor], rows: Tensor, *others: Tensor) -> Tensor:
    """function(rows, *others) of rows [n, V] and others [n], some rows at a time on the CPU.

    It must treat every row by itself. Its intermediate results then stay in the processor's cache, and in memory that
    is at hand: large ones cost more in new pages than in arithmetic.
    """
    num_rows, count = rows.shape[0], rows_per_piece(rows.shape[1])
    if rows.device.type != "cpu" or num_rows <= count:
        return function(rows, *others)
    result = None
    for start in range(0, num_rows, count):
        piece = slice(start, start + count)
        part = function(rows[piece], *(other[piece] for other in others))
        if result is None:
            result = part.new_empty(num_rows, *part.shape[1:])
        result[piece] = part
    assert result is not None, "there is more than one piece"
    return result


def argmax_lowest(logits: Tensor) -> Tensor:
    """Id int32 [n] of the largest of logits [n, V], the lowest among equals; -1 where the largest is not finite."""
    check_floats("logits", logits, ("n", "V"))
    if logits.shape[1] == 0:
        raise ConfigError("logits has no columns; at least one token is required")
    if logits.device.type == "cpu" and logits.dtype in (torch.float32, torch.float64):
        token = torch.from_numpy(np.argmax(logits.numpy(), axis=-1))  # the first of several; of NaN, too
        return torch.where(torch.isfinite(logits.gather(1, token[:, None]).squeeze(1)), token, -1).int()
    best = logits.amax(-1, keepdim=True)
    token = (logits == best).to(torch.int8).argmax(-1)
    return torch.where(torch.isfinite(best.squeeze(-1)), token, -1).int()


def log_softmax(logits: Tensor) -> Tensor:
    """Log-probabilities float32 [n, V] of logits [n, V], evaluated in float64."""
    if logits.dim() < 2 or logits.shape[-1] == 0 or not logits.is_floating_point():
        raise ConfigError(
            f"logits is {logits.dtype} {list(logits.shape)}; floating point [n, V], V above 0, is required"
        )
    return in_pieces(_log_softmax, logits)


def _log_softmax(logits: Tensor) -> Tensor:
    largest = logits.amax(-1, keepdim=True).double()

    def shifted() -> Tensor:  # made twice: two of them at a time cost more in new pages than in arithmetic
        return logits.to(torch.float64, copy=True).sub_(largest)

    log_total = torch.log(sum_last(shifted().exp_())).unsqueeze(-1)
    return shifted().sub_(log_total).float()


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


def first_places(logits: Tensor, last: Tensor, count: Tensor) -> tuple[Tensor, Tensor]:
    """What `keep_first` keeps, on the CPU: flat places int64 [S] in ascending order, and how many int64 [n] per row.

    last: [n, 1]. count: int64 [n, 1].
    """
    values, bound, wanted = logits.numpy(), last.numpy(), count.numpy()

    def places(mask: NDArray[np.bool_]) -> tuple[NDArray[np.int64], NDArray[np.int64]]:
        flat = np.flatnonzero(mask)
        ends = np.searchsorted(flat, np.arange(mask.shape[0] + 1) * mask.shape[1])
        return flat, ends[1:] - ends[:-1]

    flat, counts = places(values >= bound)
    if (counts > wanted[:, 0]).any():  # of those that equal the last one, some have too high an id
        above, equal = values > bound, values == bound
        room = wanted - np.count_nonzero(above, axis=1, keepdims=True)
        flat, counts = places(above | (equal & (np.cumsum(equal, axis=1) <= room)))
    return torch.from_numpy(flat), torch.from_numpy(counts)


def leading(logits: Tensor, count: int) -> Tensor:
    """Ids int64 [n, count] of the largest of logits [n, V] in their order, lower id first among equals."""
    if logits.device.type != "cpu" or logits.dtype != torch.float32 or not 0 < count < logits.shape[1] // 2:
        return descending(logits)[:, :count]
    return in_pieces(lambda rows: _leading(rows, count), logits)


def _leading(logits: Tensor, count: int) -> Tensor:
    num_rows, vocabulary = logits.shape
    last = largest_values(logits, count)[:, -1:]
    flat, counts = first_places(logits, last, torch.full((num_rows, 1), count))
    if bool((counts != count).any()):  # NaN is neither larger nor smaller
        return descending(logits)[:, :count]
    ids = flat.view(num_rows, count) - torch.arange(num_rows)[:, None] * vocabulary
    return ids.gather(1, torch.sort(logits.gather(1, ids), dim=-1, descending=True, stable=True).indices)


def descending(logits: Tensor) -> Tensor:
    """Ids int64 [n, V] from the largest logit to the smallest, lower id first among equals."""
    if logits.device.type != "cpu" or logits.dtype != torch.float32:
        return torch.sort(logits, dim=-1, descending=True, stable=True).indices
    # Order-preserving bits of the negated logit above the id: all keys differ, and numpy sorts integers much faster.
    bits = (logits + 0.0).view(torch.int32)
    bits = ~torch.where(bits < 0, bits ^ 0x7FFFFFFF, bits)
    keys = (bits.long() << 32) | torch.arange(logits.shape[1])
    return torch.from_numpy(np.sort(keys.numpy(), axis=-1)) & 0xFFFFFFFF


def clear_broken_rows(logits: Tensor) -> Tensor:
    """Rows bool [n] of logits float [n, V] whose largest logit is not finite; they become zeros, in place.

    So whatever reads them finds numbers. NaN anywhere makes a row broken, and so does infinity, or -inf everywhere.
    """
    broken = ~torch.isfinite(logits.amax(dim=-1))
    logits.masked_fill_(broken[:, None], 0.0)
    return broken


OPS: dict[str, Callable[..., Any]] = {
    "argmax_lowest": argmax_lowest,
    "log_softmax": log_softmax,
    "clear_broken_rows": clear_broken_rows,
}
