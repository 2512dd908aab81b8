"""Shared-KV attention over a fixed-width list of keys per query, with a sink in the denominator."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import torch
from torch import Tensor

from thalweg.interfaces import ConfigError
from thalweg.kernels.reference.numerics import carried, check_shape

GATHER_BYTES = 4 << 20


def sparse_attention(q: Tensor, keys: Tensor, indices: Tensor, sink: Tensor | None, scale: float) -> Tensor:
    """Attention output [n, H, D] of q [n, H, D] over rows `indices` int [n, K] of keys [S, D]; values are the keys.

    Index -1 (or any outside 0..S-1) is no key. sink [H] adds e^sink to the denominator and has no value vector.
    A row without keys gives 0. The result of a row depends on that row, its keys and K alone.
    """
    return _attend(q, keys, indices, sink, scale)[0]


def sparse_attention_stats(
    q: Tensor, keys: Tensor, indices: Tensor, sink: Tensor | None, scale: float
) -> tuple[Tensor, Tensor, Tensor]:
    """As sparse_attention, plus log-sum-exp (without sink; +inf for a row without keys) and maximal logit, [n, H]."""
    out, level, total, peak = _attend(q, keys, indices, sink, scale)
    empty = torch.isneginf(peak)
    lse = torch.where(empty, torch.inf, level + torch.log(torch.where(empty, 1, total)))
    return out, lse, peak


def _attend(
    q: Tensor, keys: Tensor, indices: Tensor, sink: Tensor | None, scale: float
) -> tuple[Tensor, Tensor, Tensor, Tensor]:
    """Output, then per head: the level that exponents are taken from, their sum without the sink, the largest logit."""
    n, heads, dim = q.shape
    check_shape("keys", keys, ("S", dim))
    check_shape("indices", indices, (n, "K"))
    if sink is not None:
        check_shape("sink", sink, (heads,))
    if indices.is_floating_point() or indices.dtype == torch.bool:
        raise ConfigError(f"indices has dtype {indices.dtype}; int32 or int64 is required")
    if keys.dtype != q.dtype:
        raise ConfigError(f"keys have dtype {keys.dtype}; q has {q.dtype}, and they must be the same")
    query, table = carried(q, "q"), carried(keys, "keys")
    width = indices.shape[1]
    if n == 0 or width == 0 or keys.shape[0] == 0:
        none = query.new_zeros(n, heads)
        return torch.zeros_like(q), none, none, none - torch.inf
    rows = max(1, GATHER_BYTES // (width * dim * table.element_size()))
    parts = [_attend_slice(query[i : i + rows], table, indices[i : i + rows], sink, scale) for i in range(0, n, rows)]
    out, level, total, peak = (torch.cat(part) for part in zip(*parts, strict=True))
    return out.type_as(q), level, total, peak


def _attend_slice(
    query: Tensor, table: Tensor, indices: Tensor, sink: Tensor | None, scale: float
) -> tuple[Tensor, Tensor, Tensor, Tensor]:
    """_attend for as many rows as may gather their keys at once."""
    valid = (indices >= 0) & (indices < table.shape[0])
    # A cell without a key reads one of the row's own keys, so that no other row's values can reach this one.
    own = torch.where(valid, indices, -1)
    filled = torch.where(valid, indices, own.amax(-1, keepdim=True).clamp(min=0))
    gathered = table.index_select(0, filled.flatten()).view(*indices.shape, -1)
    logits = torch.bmm(query, gathered.transpose(1, 2)).mul_(scale)
    logits = logits.masked_fill_(~valid.unsqueeze(1), -torch.inf)
    peak = logits.detach().amax(-1)
    level = peak
    if sink is not None:
        sink = sink.type_as(query)
        finite_sink = sink.detach().masked_fill(torch.isinf(sink.detach()), -torch.inf)
        level = torch.maximum(peak, finite_sink)
    level = level.masked_fill(torch.isneginf(level), 0)
    mass = torch.exp(logits - level.unsqueeze(-1))
    total = mass.sum(-1)
    denominator = total if sink is None else total + torch.exp(sink - level)
    empty = ~valid.any(-1, keepdim=True)
    out = torch.bmm(mass, gathered) / denominator.masked_fill(empty, 1).unsqueeze(-1)
    return out.masked_fill(empty.unsqueeze(-1), 0), level, total, peak


OPS: dict[str, Callable[..., Any]] = {
    "sparse_attention": sparse_attention,
    "sparse_attention_stats": sparse_attention_stats,
}
