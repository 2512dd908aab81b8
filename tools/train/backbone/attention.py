"""Attention of a training pass: whole sequences from position 0, windows in blocks, entries dense or by lists.

Letters: B sequences of S tokens, H heads of D columns, W window, E entries of a sequence's stream, k listed entries.
Keys are values. A query sees the last W positions and the entries that it is given; one softmax runs over both, with
the sink in its denominator. Logits and exponentials are kept in the dtype of the queries, everything else in float32.
"""

from __future__ import annotations

import torch
from tools.train.common.compiled import Compiled
from torch import Tensor


@Compiled
def window_attention(queries: Tensor, keys: Tensor, sink: Tensor, window: int) -> Tensor:
    """[B, S, H, D] of queries [B, S, H, D] over the windows of keys [B, S, D]; sink [H]. S is a multiple of W."""
    pairs, logits = _window_logits(queries * queries.shape[-1] ** -0.5, keys, window)
    level = torch.maximum(logits.amax(-1), sink).detach()
    mass = torch.exp(logits - level.unsqueeze(-1))
    total = mass.sum(-1) + torch.exp(sink - level)
    return (_window_values(mass, pairs, queries) / total.unsqueeze(-1)).to(queries.dtype)


@Compiled
def dense_attention(queries: Tensor, keys: Tensor, entries: Tensor, mask: Tensor, sink: Tensor, window: int) -> Tensor:
    """As window_attention, with the entries [B, E, D] that mask, bool [B, S, E], shows."""
    batch, length, heads, dim = queries.shape
    queries = queries * dim**-0.5
    pairs, near = _window_logits(queries, keys, window)
    far = (queries.flatten(1, 2) @ entries.mT).view(batch, length, heads, -1).float()
    far = far.masked_fill(~mask.unsqueeze(2), -torch.inf)
    near_mass, far_mass, total = _masses(near, far, sink)
    values = _window_values(near_mass, pairs, queries)
    values = values + (far_mass.to(queries.dtype).flatten(1, 2) @ entries).view(batch, length, heads, dim).float()
    return (values / total.unsqueeze(-1)).to(queries.dtype)


@Compiled
def listed_attention(
    queries: Tensor, keys: Tensor, entries: Tensor, lists: Tensor, sink: Tensor, window: int
) -> Tensor:
    """As window_attention, with the entries of [B, E, D] that lists, int [B, S, k], names; -1 is none."""
    batch, length, heads, dim = queries.shape
    queries = queries * dim**-0.5
    pairs, near = _window_logits(queries, keys, window)
    start = entries.shape[1] * torch.arange(batch, device=lists.device).view(-1, 1, 1)
    rows = (lists.clamp(min=0) + start).view(batch * length, -1)
    # Gathered in float32: the gradients of an entry come from many rows and are added up one by one.
    listed = entries.float().flatten(0, 1)[rows].to(queries.dtype)
    far = torch.bmm(queries.flatten(0, 1), listed.mT).view(batch, length, heads, -1).float()
    far = far.masked_fill((lists < 0).unsqueeze(2), -torch.inf)
    near_mass, far_mass, total = _masses(near, far, sink)
    values = _window_values(near_mass, pairs, queries)
    far_values = torch.bmm(far_mass.to(queries.dtype).flatten(0, 1), listed)
    values = values + far_values.view(batch, length, heads, dim).float()
    return (values / total.unsqueeze(-1)).to(queries.dtype)


@Compiled
def entry_mass(
    queries: Tensor, keys: Tensor, entries: Tensor, sink: Tensor, blocks: Tensor, window: int, ratio: int
) -> Tensor:
    """How attention over *all* visible entries is spread: float32 [B, n * W, E], rows that add up to 1.

    blocks: int64 [n], which blocks of W queries are looked at. Heads are added up. A row that sees no entry is zero.
    """
    batch, _, heads, dim = queries.shape
    chosen = queries.view(batch, -1, window, heads, dim)[:, blocks] * dim**-0.5
    pairs = _pairs(keys, window)[:, blocks]
    near = (chosen.flatten(2, 3) @ pairs.mT).view(batch, -1, window, heads, 2 * window).float()
    near = near.masked_fill(~_inside_window(blocks, window).unsqueeze(2), -torch.inf).flatten(1, 2)
    far = (chosen.flatten(1, 3) @ entries.mT).view(batch, -1, heads, entries.shape[1]).float()
    far = far.masked_fill(~_visible_rows(blocks, window, ratio, entries.shape[1]).unsqueeze(1), -torch.inf)
    _, far_mass, total = _masses(near, far, sink)
    mass = (far_mass / total.unsqueeze(-1)).sum(2)
    return mass / mass.sum(-1, keepdim=True).clamp(min=1e-20)


def _visible_rows(blocks: Tensor, window: int, ratio: int, entries: int) -> Tensor:
    """bool [n * W, E]: which entries of a stream the queries of these blocks [n] may see."""
    within = torch.arange(window, device=blocks.device)
    position = (blocks.unsqueeze(1) * window + within).flatten()
    return torch.arange(entries, device=blocks.device) < ((position + 1) // ratio).unsqueeze(1)


def _pairs(keys: Tensor, window: int) -> Tensor:
    """Each block of W keys behind the block before it (zeros before the first): [B, S / W, 2 W, D]."""
    batch, length, dim = keys.shape
    blocks = keys.view(batch, length // window, window, dim)
    before = torch.cat((torch.zeros_like(blocks[:, :1]), blocks[:, :-1]), 1)
    return torch.cat((before, blocks), 2)


def _inside_window(blocks: Tensor, window: int) -> Tensor:
    """bool [n, W, 2 W]: the columns of `_pairs` that lie in the window of each query of these blocks [n]."""
    row = torch.arange(window, device=blocks.device).unsqueeze(1)
    column = torch.arange(2 * window, device=blocks.device)
    inside = (column > row) & (column <= row + window)
    return inside & ((blocks.view(-1, 1, 1) > 0) | (column >= window))


def _window_logits(queries: Tensor, keys: Tensor, window: int) -> tuple[Tensor, Tensor]:
    """Key pairs [B, S / W, 2 W, D] and masked logits float32 [B, S, H, 2 W] of queries that are scaled already."""
    batch, length, heads, dim = queries.shape
    pairs = _pairs(keys, window)
    logits = queries.view(batch, -1, window * heads, dim) @ pairs.mT
    logits = logits.view(batch, -1, window, heads, 2 * window).float()
    inside = _inside_window(torch.arange(length // window, device=keys.device), window)
    logits = logits.masked_fill(~inside.unsqueeze(2), -torch.inf)
    return pairs, logits.view(batch, length, heads, 2 * window)


def _masses(near: Tensor, far: Tensor, sink: Tensor) -> tuple[Tensor, Tensor, Tensor]:
    """Exponentials of logits of keys [..., H, 2 W] and entries [..., H, E], and their sum with the sink [..., H]."""
    level = torch.maximum(torch.maximum(near.amax(-1), far.amax(-1)), sink).detach()
    near_mass, far_mass = torch.exp(near - level.unsqueeze(-1)), torch.exp(far - level.unsqueeze(-1))
    return near_mass, far_mass, near_mass.sum(-1) + far_mass.sum(-1) + torch.exp(sink - level)


def _window_values(mass: Tensor, pairs: Tensor, queries: Tensor) -> Tensor:
    """float32 [B, S, H, D]: the keys of each window weighted with mass [B, S, H, 2 W]."""
    blocks = pairs.shape[1]
    weights = mass.to(queries.dtype).view(pairs.shape[0], blocks, -1, mass.shape[-1])
    return (weights @ pairs).view(queries.shape).float()
