"""The indexer: scores of compressed entries, their top-k, and the candidate blocks that restrict later layers."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import numpy as np
import torch
from torch import Tensor

from thalweg.interfaces import ConfigError
from thalweg.kernels.reference.gemm import batched_row_products, row_products
from thalweg.kernels.reference.numerics import carried, check_count, check_floats, check_integers, check_shape

BF16_MAX = float(torch.finfo(torch.bfloat16).max)
KEY_TILE = 64
CHUNK_BYTES = 16 << 20


def indexer_scores(q: Tensor, weights: Tensor, keys: Tensor, begin: Tensor, end: Tensor) -> Tensor:
    """score[i, j] = sum_g weights[i, g] relu(q[i, g] . keys[begin_i + j]), [n, max(end - begin)].

    q [n, G, d], weights [n, G], keys [M, d], begin and end int [n]. Columns past a query's own entries are -inf. A
    score depends on its query and its key alone: keys are taken in tiles of 64 counted from the query's first one.
    """
    n, groups, dim = q.shape
    check_shape("weights", weights, (n, groups))
    check_shape("keys", keys, ("M", dim))
    check_shape("begin", begin, (n,))
    check_shape("end", end, (n,))
    lengths = (end - begin).long()
    width = max(int(lengths.max()), 0) if n else 0
    if width == 0:
        return q.new_full((n, 0), -torch.inf)
    if int(end.max()) > keys.shape[0]:
        raise ConfigError(f"end reaches {int(end.max())}; there are {keys.shape[0]} keys")
    if int(begin.min()) < 0:
        raise ConfigError(f"begin holds {int(begin.min())}; it must not be negative")
    query, table, scale = carried(q, "q"), carried(keys, "keys"), carried(weights, "weights")
    scores = query.new_full((n, width), -torch.inf)
    row_bytes = -(-width // KEY_TILE) * KEY_TILE * (groups + dim) * table.element_size()
    limit = max(1, CHUNK_BYTES // row_bytes)
    starts = sorted(set(begin.tolist()))
    if len(starts) * 4 <= n:
        for start in starts:
            own_rows = (begin == start).nonzero().squeeze(-1)
            for first in range(0, own_rows.shape[0], limit):
                rows = own_rows[first : first + limit]
                longest = int(lengths[rows].max())
                own = table[start : start + longest]
                scores[rows, :longest] = _scores_of_one_sequence(query[rows], scale[rows], own)
    else:
        for i in range(0, n, limit):
            part = slice(i, i + limit)
            scores[part] = _scores_of_own_keys(query[part], scale[part], table, begin[part], width)
    hidden = torch.arange(width, device=q.device) >= lengths.unsqueeze(-1)
    return scores.masked_fill_(hidden, -torch.inf).type_as(q)


def _scores_of_one_sequence(query: Tensor, weights: Tensor, keys: Tensor) -> Tensor:
    """Scores [n, L] of every query with every key [L, d]."""
    n, groups, dim = query.shape
    length = keys.shape[0]
    tiles = torch.nn.functional.pad(keys, (0, 0, 0, -length % KEY_TILE)).view(-1, KEY_TILE, dim)
    products = query.new_empty(n, tiles.shape[0], groups, KEY_TILE)
    flat = query.reshape(n * groups, dim)
    for i, tile in enumerate(tiles):
        products[:, i] = row_products(flat, tile).view(n, groups, KEY_TILE)
    return _weighted(products, weights)[:, :length]


def _scores_of_own_keys(query: Tensor, weights: Tensor, table: Tensor, begin: Tensor, width: int) -> Tensor:
    """Scores [n, width] of every query with the keys from its own first row on; past the table they are repeated."""
    n, groups, dim = query.shape
    count = -(-width // KEY_TILE)
    column = torch.arange(count * KEY_TILE, device=query.device)
    index = (begin.long().unsqueeze(-1) + column).clamp(max=table.shape[0] - 1)
    tiles = table[index].view(n * count, KEY_TILE, dim)
    repeated = query.unsqueeze(1).expand(n, count, groups, dim).reshape(n * count, groups, dim)
    products = batched_row_products(repeated, tiles).view(n, count, groups, KEY_TILE)
    return _weighted(products, weights)[:, :width]


def _weighted(products: Tensor, weights: Tensor) -> Tensor:
    """sum_g weights[i, g] relu(products[i, t, g, c]), tile by tile: [n, t * c]."""
    n, count, groups, width = products.shape
    repeated = weights.unsqueeze(1).expand(n, count, groups).reshape(n * count, 1, groups)
    return torch.bmm(repeated, torch.relu(products).view(n * count, groups, width)).view(n, count * width)


def block_scores(scores: Tensor, visible: Tensor, block_size: int) -> Tensor:
    """Largest visible score of each block of entries: scores [n, M], visible int [n] -> [n, ceil(M / block_size)].

    Scores are capped at the largest finite bfloat16; the last visible block is +inf, blocks without entries -inf.
    """
    check_floats("scores", scores, ("n", "S"))
    n, entries = scores.shape
    check_integers("visible", visible, (n,))
    check_count("block_size", block_size, 1)
    blocks = -(-entries // block_size)
    column = torch.arange(entries, device=scores.device)
    seen = scores.masked_fill(column >= visible.unsqueeze(-1), -torch.inf).clamp(max=BF16_MAX)
    seen = torch.nn.functional.pad(seen, (0, blocks * block_size - entries), value=-torch.inf)
    best = seen.view(n, blocks, block_size).amax(-1) if blocks else seen.new_empty(n, 0)
    last = (visible.unsqueeze(-1) - 1).div(block_size, rounding_mode="floor")
    block = torch.arange(blocks, device=scores.device)
    best = torch.where(block == last, torch.inf, best)
    return torch.where(block > last, -torch.inf, best)


def select_topk(scores: Tensor, visible: Tensor, k: int) -> Tensor:
    """Ids int32 [n, k] of the k largest of the first visible[i] scores [n, M]: ascending, lower id first among equals.

    An entry of -inf is never picked; rows with fewer entries are filled with -1.
    """
    check_floats("scores", scores, ("n", "S"))
    n, entries = scores.shape
    check_integers("visible", visible, (n,))
    check_count("k", k)
    column = torch.arange(entries, device=scores.device)
    shown = scores.detach().masked_fill(column >= visible.unsqueeze(-1), -torch.inf)
    kept = shown > -torch.inf
    if k == 0:
        kept = torch.zeros_like(kept)
    elif k < entries:
        least = _kth_largest(shown, k)
        above = shown > least
        equal = (shown == least) & kept
        room = k - above.sum(-1, keepdim=True)
        kept = above | (equal & (equal.cumsum(-1, dtype=torch.int32) <= room))
    ids = torch.full((n, k), -1, dtype=torch.int32, device=scores.device)
    rows, columns = kept.nonzero(as_tuple=True)
    rank = kept.cumsum(-1, dtype=torch.int32)[rows, columns] - 1
    ids[rows, rank.long()] = columns.int()
    return ids


def _kth_largest(scores: Tensor, k: int) -> Tensor:
    """The k-th largest of each row, [n, 1]."""
    if scores.device.type != "cpu" or scores.dtype not in (torch.float32, torch.float64):
        return scores.topk(k, sorted=False).values.amin(-1, keepdim=True)
    place = scores.shape[1] - k
    return torch.from_numpy(np.partition(scores.numpy(), place, axis=-1)[:, place : place + 1])


def select_candidate_blocks(scores: Tensor, visible: Tensor, block_size: int, topk_blocks: int) -> Tensor:
    """Best blocks int32 [n, topk_blocks] by block_scores' output [n, B], ascending, -1 fill; visible counts entries."""
    check_integers("visible", visible)
    check_count("block_size", block_size, 1)
    count = (visible + block_size - 1).div(block_size, rounding_mode="floor")
    return select_topk(scores, count, topk_blocks)


def restrict_to_blocks(scores: Tensor, blocks: Tensor, block_size: int) -> Tensor:
    """scores [n, M] with -inf outside the listed blocks int [n, C] (-1 = none)."""
    check_floats("scores", scores, ("n", "S"))
    n, entries = scores.shape
    check_integers("blocks", blocks, (n, "C"))
    check_count("block_size", block_size, 1)
    count = -(-entries // block_size)
    chosen = torch.zeros(n, count + 1, dtype=torch.bool, device=scores.device)
    chosen.scatter_(1, torch.where(blocks < 0, count, blocks).long(), True)
    inside = chosen[:, :count].repeat_interleave(block_size, 1)[:, :entries]
    return scores.masked_fill(~inside, -torch.inf)


def compact_lengths(blocks: Tensor, visible: Tensor, block_size: int) -> Tensor:
    """Visible entries, int32 [n], inside the listed blocks int [n, C] (-1 = none); visible int [n] counts entries."""
    check_integers("blocks", blocks, ("n", "C"))
    check_integers("visible", visible, (blocks.shape[0],))
    check_count("block_size", block_size, 1)
    inside = (visible.unsqueeze(-1) - blocks * block_size).clamp(min=0, max=block_size)
    return torch.where(blocks < 0, 0, inside).sum(-1).int()


def restore_indices(compact: Tensor, blocks: Tensor, block_size: int, offset: Tensor | None = None) -> Tensor:
    """Entry ids int32 [n, k] of compact indices c: blocks[c / size] * size + c mod size, plus offset [n] where given.

    -1 where c is -1 or out of range, or its block is -1. Whether the entry is visible is not checked.
    """
    check_integers("blocks", blocks, ("n", "C"))
    n, listed = blocks.shape
    check_integers("compact", compact, (n, "k"))
    check_count("block_size", block_size, 1)
    slot = compact.div(block_size, rounding_mode="floor")
    known = (compact >= 0) & (slot < listed)
    block = blocks.gather(1, torch.where(known, slot, 0).long())
    restored = block * block_size + compact % block_size
    if offset is not None:
        check_integers("offset", offset, (n,))
        restored = restored + offset.unsqueeze(-1)
    return torch.where(known & (block >= 0), restored, -1).int()


OPS: dict[str, Callable[..., Any]] = {
    "indexer_scores": indexer_scores,
    "block_scores": block_scores,
    "select_topk": select_topk,
    "select_candidate_blocks": select_candidate_blocks,
    "restrict_to_blocks": restrict_to_blocks,
    "compact_lengths": compact_lengths,
    "restore_indices": restore_indices,
}
