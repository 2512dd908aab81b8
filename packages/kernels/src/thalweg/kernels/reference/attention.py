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
    A row without keys gives 0. The result of a row depends on that row and on K alone.
    """
    return sparse_attention_stats(q, keys, indices, sink, scale)[0]


def sparse_attention_stats(
    q: Tensor, keys: Tensor, indices: Tensor, sink: Tensor | None, scale: float
) -> tuple[Tensor, Tensor, Tensor]:
    """As sparse_attention, plus log-sum-exp (without sink; +inf for a row without keys) and maximal logit, [n, H]."""
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
        empty = query.new_zeros(n, heads)
        return q * 0, empty + torch.inf, empty - torch.inf
    rows = max(1, GATHER_BYTES // (width * dim * table.element_size()))
    parts = [_attend(query[i : i + rows], table, indices[i : i + rows], sink, scale) for i in range(0, n, rows)]
    out, lse, peak = parts[0] if len(parts) == 1 else tuple(torch.cat(part) for part in zip(*parts, strict=True))
    return out.to(q.dtype), lse, peak


def _attend(
    query: Tensor, table: Tensor, indices: Tensor, sink: Tensor | None, scale: float
) -> tuple[Tensor, Tensor, Tensor]:
    valid = (indices >= 0) & (indices < table.shape[0])
    gathered = table[torch.where(valid, indices, 0).to(torch.int64)]
    logits = torch.bmm(query, gathered.transpose(1, 2)) * scale
    logits = logits.masked_fill(~valid.unsqueeze(1), -torch.inf)
    peak = logits.amax(-1).detach()
    level = peak
    if sink is not None:
        sink = sink.to(query.dtype)
        level = torch.maximum(peak, torch.where(torch.isinf(sink), -torch.inf, sink).detach())
    level = torch.where(torch.isinf(level), 0, level)
    mass = torch.exp(logits - level.unsqueeze(-1))
    total = mass.sum(-1)
    denominator = total if sink is None else total + torch.exp(sink - level)
    some = valid.any(-1).view(-1, 1)
    weighted = torch.bmm(mass, gathered)
    out = torch.where(some.unsqueeze(-1), weighted / torch.where(some, denominator, 1).unsqueeze(-1), 0)
    lse = torch.where(some, level + torch.log(torch.where(some, total, 1)), torch.inf)
    return out, lse, peak


OPS: dict[str, Callable[..., Any]] = {
    "sparse_attention": sparse_attention,
    "sparse_attention_stats": sparse_attention_stats,
}
