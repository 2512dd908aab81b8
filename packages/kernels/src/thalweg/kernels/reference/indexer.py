"""The indexer: scores of compressed entries, their top-k, and the candidate blocks that restrict later layers."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import torch
from torch import Tensor

from thalweg.interfaces import ConfigError
from thalweg.kernels.reference.numerics import carried, check_shape

BF16_MAX = float(torch.finfo(torch.bfloat16).max)
KEY_TILE = 16
GATHER_BYTES = 64 << 20
SHARED_ROWS = 4


def indexer_scores(q: Tensor, weights: Tensor, keys: Tensor, begin: Tensor, end: Tensor) -> Tensor:
    """score[i, j] = sum_g weights[i, g] relu(q[i, g] . keys[begin_i + j]), [n, max(end - begin)].

    q [n, G, d], weights [n, G], keys [M, d], begin and end int [n]. Columns past a query's own entries are -inf.
    """
    n, groups, dim = q.shape
    check_shape("weights", weights, (n, groups))
    check_shape("keys", keys, ("M", dim))
    check_shape("begin", begin, (n,))
    check_shape("end", end, (n,))
    begin, lengths = begin.to(torch.int64), (end - begin).to(torch.int64)
    width = max(int(lengths.max()), 0) if n else 0
    if n and int(end.max()) > keys.shape[0]:
        raise ConfigError(f"end reaches {int(end.max())}; there are {keys.shape[0]} keys")
    query, table, scale = carried(q, "q"), carried(keys, "keys"), carried(weights, "weights")
    if width == 0:
        return q.new_full((n, 0), -torch.inf)
    starts, counts = torch.unique_consecutive(begin, return_counts=True)
    if n >= SHARED_ROWS * starts.shape[0]:
        scores = _shared_keys(query, scale, table, starts.tolist(), counts.tolist(), lengths, width)
    else:
        scores = _own_keys(query, scale, table, begin, lengths, width)
    return scores.to(q.dtype)


def _shared_keys(
    query: Tensor, weights: Tensor, table: Tensor, starts: list[int], counts: list[int], lengths: Tensor, width: int
) -> Tensor:
    """Rows in runs over the same keys (prefill): every tile of keys meets the rows of a run that may see it."""
    dim = query.shape[2]
    scores = query.new_full((query.shape[0], -(-width // KEY_TILE) * KEY_TILE), -torch.inf)
    columns = query.transpose(1, 2).contiguous()
    row = 0
    for start, count in zip(starts, counts, strict=True):
        seen = lengths[row : row + count]
        last = int(seen.max())
        keys = torch.nn.functional.pad(table[start : start + last], (0, 0, 0, -last % KEY_TILE))
        for tile in range(0, last, KEY_TILE):
            first = row + int((seen > tile).to(torch.int8).argmax())
            end = row + count
            repeated = keys[tile : tile + KEY_TILE].expand(end - first, KEY_TILE, dim)
            products = torch.relu(torch.bmm(repeated, columns[first:end]))
            scores[first:end, tile : tile + KEY_TILE] = _weighted(products, weights[first:end])
        row += count
    column = torch.arange(width, device=query.device)
    return scores[:, :width].masked_fill(column >= lengths.unsqueeze(-1), -torch.inf)


def _own_keys(query: Tensor, weights: Tensor, table: Tensor, begin: Tensor, lengths: Tensor, width: int) -> Tensor:
    """Every row over keys of its own (decode): the same tiles, gathered, with the same bits."""
    n, groups, dim = query.shape
    padded = -(-width // KEY_TILE) * KEY_TILE
    column = torch.arange(padded, device=query.device)
    rows = max(1, GATHER_BYTES // (padded * dim * table.element_size()))
    parts = []
    for i in range(0, n, rows):
        visible = column < lengths[i : i + rows].unsqueeze(-1)
        index = torch.where(visible, begin[i : i + rows].unsqueeze(-1) + column, 0)
        tiles = table[index].view(-1, KEY_TILE, dim)
        repeated = query[i : i + rows].transpose(1, 2).repeat_interleave(padded // KEY_TILE, 0)
        products = torch.relu(torch.bmm(tiles, repeated)).view(-1, padded, groups)
        scores = _weighted(products, weights[i : i + rows])
        parts.append(scores.masked_fill(~visible, -torch.inf)[:, :width])
    return torch.cat(parts)


def _weighted(products: Tensor, weights: Tensor) -> Tensor:
    """sum_g weights[i, g] products[i, j, g], added in head order."""
    return (products * weights.unsqueeze(1)).sum(-1)


def block_scores(scores: Tensor, visible: Tensor, block_size: int) -> Tensor:
    """Largest visible score of each block of entries: scores [n, M], visible int [n] -> [n, ceil(M / block_size)].

    Scores are capped at the largest finite bfloat16; the last visible block is +inf, blocks without entries -inf.
    """
    n, entries = scores.shape
    check_shape("visible", visible, (n,))
    if block_size <= 0:
        raise ConfigError(f"block_size is {block_size}; it must be positive")
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
    n, entries = scores.shape
    check_shape("visible", visible, (n,))
    if k < 0:
        raise ConfigError(f"k is {k}; it must not be negative")
    column = torch.arange(entries, device=scores.device)
    hidden = column >= visible.unsqueeze(-1)
    ordered = torch.sort(scores.masked_fill(hidden, -torch.inf), dim=-1, descending=True, stable=True)
    return _ascending(torch.where(ordered.values > -torch.inf, ordered.indices, -1)[:, :k], k)


def _ascending(ids: Tensor, width: int) -> Tensor:
    """Sort ids per row with -1 last, and fill with -1 to `width` columns."""
    big = torch.iinfo(torch.int64).max
    ids = torch.where(ids < 0, big, ids).sort(-1).values
    ids = torch.where(ids == big, -1, ids)
    return torch.nn.functional.pad(ids, (0, width - ids.shape[1]), value=-1).to(torch.int32)


def select_candidate_blocks(scores: Tensor, visible: Tensor, block_size: int, topk_blocks: int) -> Tensor:
    """Best blocks int32 [n, topk_blocks] by block_scores' output [n, B], ascending, -1 fill; visible counts entries."""
    count = (visible + block_size - 1).div(block_size, rounding_mode="floor")
    return select_topk(scores, count, topk_blocks)


def restrict_to_blocks(scores: Tensor, blocks: Tensor, block_size: int) -> Tensor:
    """scores [n, M] with -inf outside the listed blocks int [n, C] (-1 = none)."""
    n, entries = scores.shape
    check_shape("blocks", blocks, (n, "C"))
    count = -(-entries // block_size)
    chosen = torch.zeros(n, count + 1, dtype=torch.bool, device=scores.device)
    chosen.scatter_(1, torch.where(blocks < 0, count, blocks).to(torch.int64), True)
    inside = chosen[:, :count].repeat_interleave(block_size, 1)[:, :entries]
    return scores.masked_fill(~inside, -torch.inf)


def compact_lengths(blocks: Tensor, visible: Tensor, block_size: int) -> Tensor:
    """Visible entries, int32 [n], inside the listed blocks int [n, C] (-1 = none); visible int [n] counts entries."""
    check_shape("visible", visible, (blocks.shape[0],))
    inside = (visible.unsqueeze(-1) - blocks * block_size).clamp(min=0, max=block_size)
    return torch.where(blocks < 0, 0, inside).sum(-1).to(torch.int32)


def restore_indices(compact: Tensor, blocks: Tensor, block_size: int, offset: Tensor | None = None) -> Tensor:
    """Entry ids int32 [n, k] of compact indices c: blocks[c / size] * size + c mod size, plus offset [n] where given.

    -1 where c is -1 or out of range, or its block is -1. Whether the entry is visible is not checked.
    """
    n, listed = blocks.shape
    check_shape("compact", compact, (n, "k"))
    slot = compact.div(block_size, rounding_mode="floor")
    known = (compact >= 0) & (slot < listed)
    block = blocks.gather(1, torch.where(known, slot, 0).to(torch.int64))
    restored = block * block_size + compact % block_size
    if offset is not None:
        check_shape("offset", offset, (n,))
        restored = restored + offset.unsqueeze(-1)
    return torch.where(known & (block >= 0), restored, -1).to(torch.int32)


OPS: dict[str, Callable[..., Any]] = {
    "indexer_scores": indexer_scores,
    "block_scores": block_scores,
    "select_topk": select_topk,
    "select_candidate_blocks": select_candidate_blocks,
    "restrict_to_blocks": restrict_to_blocks,
    "compact_lengths": compact_lengths,
    "restore_indices": restore_indices,
}
