"""Engram: n-gram windows, their hash into table rows, and the gated injection into the residual streams."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import torch
from torch import Tensor

from thalweg.interfaces import ConfigError
from thalweg.kernels.reference.numerics import carried, check_integers, check_shape, check_tensor, sigmoid, sum_last

GATE_FLOOR = 1e-6


def ngram_window(tokens: Tensor, history: Tensor, lengths: Tensor, pad: int) -> Tensor:
    """The last N compressed ids of every row, newest first: int64 [n, N].

    tokens: int64 [n], the new ids of all sequences packed one after the other. history: int64 [B, N - 1], the ids
    before them, oldest first. lengths: int64 [B], rows per sequence. A negative id (image mark, or nothing there) and
    everything older than it become `pad`.
    """
    check_integers("tokens", tokens, ("n",))
    check_integers("history", history, ("B", "N - 1"))
    batch, back = history.shape
    check_shape("lengths", lengths, (batch,))
    lengths = lengths.long()
    if int(lengths.sum()) != tokens.shape[0]:
        raise ConfigError(f"lengths add up to {int(lengths.sum())}; there are {tokens.shape[0]} tokens")
    device = tokens.device
    sequence = torch.repeat_interleave(torch.arange(batch, device=device), lengths)
    first = torch.cumsum(lengths, 0) - lengths
    row = torch.arange(tokens.shape[0], device=device)
    within = row - first[sequence]
    age = torch.arange(back + 1, device=device)
    index = within.unsqueeze(-1) - age
    fresh = tokens[(row.unsqueeze(-1) - age).clamp(min=0)] if tokens.shape[0] else tokens.new_empty(0, back + 1)
    old = history[sequence.unsqueeze(-1), (back + index).clamp(min=0, max=max(back - 1, 0))] if back else fresh
    window = torch.where(index >= 0, fresh, old)
    blocked = torch.cumsum((window < 0).long(), -1) > 0
    return torch.where(blocked, pad, window)


def engram_hash(
    ngram_ids: Tensor, multipliers: Tensor, primes: Tensor, offsets: Tensor, image_mask: Tensor | None = None
) -> Tensor:
    """Table rows int64 [n, (N - 1) * heads] of the windows ngram_ids int64 [n, N], newest id first.

    multipliers: int64 [N]; primes and offsets: int64 [(N - 1) * heads], n-gram size major. Rows of image_mask get -1.
    """
    check_hash(ngram_ids, multipliers, primes, offsets, image_mask)
    sizes = ngram_ids.shape[1]
    heads = primes.shape[0] // (sizes - 1)
    products = ngram_ids * multipliers
    mixed = products[:, 0]
    hashes = []
    for size in range(1, sizes):
        mixed = mixed ^ products[:, size]
        hashes.append(mixed)
    keys = torch.stack(hashes, -1).repeat_interleave(heads, -1)
    rows = offsets + keys % primes
    return rows if image_mask is None else torch.where(image_mask.unsqueeze(-1), -1, rows)


def check_hash(
    ngram_ids: Tensor, multipliers: Tensor, primes: Tensor, offsets: Tensor, image_mask: Tensor | None
) -> None:
    """Raise ConfigError unless the arguments of `engram_hash` go together."""
    check_tensor("ngram_ids", ngram_ids, ("n", "N"), torch.int64)
    rows, sizes = ngram_ids.shape
    if sizes < 2:
        raise ConfigError(f"ngram_ids has {sizes} columns; at least 2 are needed to form an n-gram")
    check_tensor("multipliers", multipliers, (sizes,), torch.int64)
    check_tensor("primes", primes, ("(N - 1) * heads",), torch.int64)
    columns = primes.shape[0] // (sizes - 1) * (sizes - 1)
    check_shape("primes", primes, (columns,))
    check_tensor("offsets", offsets, (columns,), torch.int64)
    if image_mask is not None:
        check_tensor("image_mask", image_mask, (rows,), torch.bool)


def engram_gate(x: Tensor, keys: Tensor, q_weight: Tensor, k_weight: Tensor, eps: float) -> Tensor:
    """Gate [n, m] of every stream: x and keys [n, m, h], q_weight and k_weight [m, h]."""
    check_shape("x", x, ("n", "m", "h"))
    n, m, h = x.shape
    check_shape("keys", keys, (n, m, h))
    check_shape("q_weight", q_weight, (m, h))
    check_shape("k_weight", k_weight, (m, h))
    value = carried(x)
    keys, q_weight, k_weight = (t.type_as(value) for t in (keys, q_weight, k_weight))
    dot = sum_last(value * q_weight * k_weight * keys)
    dot = dot * torch.rsqrt(sum_last(value * value) / h + eps) * torch.rsqrt(sum_last(keys * keys) / h + eps) * h**-0.5
    return squash(dot).type_as(x)


def squash(dot: Tensor) -> Tensor:
    """sigmoid(+-sqrt(max(|dot|, 1e-6))) with the sign of dot, that of a zero included."""
    return sigmoid(torch.copysign(torch.sqrt(torch.clamp(dot.abs(), min=GATE_FLOOR)), dot))


def engram_apply(x: Tensor, value: Tensor, gate: Tensor, image_mask: Tensor | None = None) -> Tensor:
    """x [n, m, h] plus gate [n, m] times value [n, h]; rows of image_mask stay as they are."""
    check_shape("x", x, ("n", "m", "h"))
    n, m, h = x.shape
    check_shape("value", value, (n, h))
    check_shape("gate", gate, (n, m))
    carrier = carried(x)
    result = carrier + gate.type_as(carrier).unsqueeze(-1) * value.type_as(carrier).unsqueeze(1)
    if image_mask is not None:
        check_tensor("image_mask", image_mask, (n,), torch.bool)
        result = torch.where(image_mask.view(n, 1, 1), carrier, result)
    return result.type_as(x)


OPS: dict[str, Callable[..., Any]] = {
    "ngram_window": ngram_window,
    "engram_hash": engram_hash,
    "engram_gate": engram_gate,
    "engram_apply": engram_apply,
}
