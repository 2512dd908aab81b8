"""Ops of the model for many rows at once, on a CPU or a CUDA device, and how single ops are replaced.

The reference ops promise that a row's bits are its own; an evaluation needs speed instead, so products here are plain
ones and lists of keys are gathered a gigabyte at a time. In float64 both agree to the last digits.
Letters: n rows, H heads of D columns, K keys of a row, G index heads of d columns, M entries.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from typing import Any

import torch
from torch import Tensor

from thalweg.kernels import BoundOps, Implementation, bind, default_registry

GATHER_BYTES = {"cpu": 16 << 20, "cuda": 2 << 30}
"""How much one gather of keys, or one block of index scores, may take."""

Op = Callable[..., Any]


def matmul(x: Tensor, weight: Tensor) -> Tensor:
    """x [n, i] times the transpose of weight [o, i]."""
    return torch.nn.functional.linear(x, weight)


def grouped_matmul(x: Tensor, counts: Sequence[int], weights: Sequence[Tensor]) -> Tensor:
    """Rows of x [n, i], group after group, by the weight [o, i] of their group."""
    parts = zip(x.split_with_sizes(list(counts)), weights, strict=True)
    return torch.cat([matmul(rows, weight) for rows, weight in parts])


def sparse_attention(q: Tensor, keys: Tensor, indices: Tensor, sink: Tensor | None, scale: float) -> Tensor:
    """Output [n, H, D] of q [n, H, D] over rows `indices` [n, K] of keys [S, D], -1 for none; values are the keys."""
    rows = rows_of_a_piece(q, indices.shape[1] * (q.shape[1] + q.shape[2]))
    pieces = zip(torch.split(q, rows), torch.split(indices, rows), strict=True)
    return torch.cat([_attend(queries, keys, listed, sink, scale) for queries, listed in pieces])


def _attend(q: Tensor, keys: Tensor, indices: Tensor, sink: Tensor | None, scale: float) -> Tensor:
    gathered = keys[indices.clamp(min=0)]
    logits = (q @ gathered.transpose(1, 2) * scale).masked_fill(indices[:, None] < 0, -torch.inf)
    if sink is None:
        return logits.softmax(-1) @ gathered
    with_sink = torch.cat([logits, sink.type_as(q)[None, :, None].expand(len(q), -1, -1)], -1)
    return with_sink.softmax(-1)[..., :-1] @ gathered


def indexer_scores(q: Tensor, weights: Tensor, keys: Tensor, begin: Tensor, end: Tensor) -> Tensor:
    """sum_g weights[i, g] relu(q[i, g] . keys[begin_i + j]), [n, most entries]; -inf past a row's own entries.

    Rows of one sequence, those with one `begin`, must lie together.
    """
    width = int((end - begin).max())
    scores = q.new_full((q.shape[0], width), -torch.inf)
    starts, counts = torch.unique_consecutive(begin, return_counts=True)
    first = 0
    for start, count in zip(starts.tolist(), counts.tolist(), strict=True):
        own = keys[start : start + width]
        piece = rows_of_a_piece(q, q.shape[1] * own.shape[0])
        for row in range(first, first + count, piece):
            rows = slice(row, min(row + piece, first + count))
            scores[rows, : own.shape[0]] = torch.einsum("ng,ngm->nm", weights[rows], (q[rows] @ own.t()).relu_())
        first += count
    column = torch.arange(width, device=q.device)
    return scores.masked_fill_(column >= (end - begin)[:, None], -torch.inf)


def rows_of_a_piece(like: Tensor, elements: int) -> int:
    """How many rows of so many elements, of the dtype and on the device of `like`, are worked on at once."""
    return max(1, GATHER_BYTES[like.device.type] // (elements * like.element_size()))


VECTORISED: Mapping[str, Op] = {
    "matmul": matmul,
    "grouped_matmul": grouped_matmul,
    "sparse_attention": sparse_attention,
    "indexer_scores": indexer_scores,
}


def reference(name: str) -> Op:
    """The reference of an op: what a replacement may call for the part that it leaves alone."""
    return default_registry().spec(name).reference


def bind_with(replaced: Mapping[str, Op]) -> BoundOps:
    """Torch ops for any device, some of them replaced by name."""
    chosen = {**VECTORISED, **replaced}
    own = [Implementation(name, "cpu", "reference", function, priority=1) for name, function in chosen.items()]
    return bind("cpu", registry=default_registry().extended(own))
