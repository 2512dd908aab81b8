"""Index arithmetic on the device: what a decode step reads and writes, and how compact descriptions become index rows.

Letters: N sequences, T query tokens, W window size, R ring length, B tokens per block, r compress ratio, K columns.
Every result is int32 unless said otherwise and -1 means "none" in index rows.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import Any

import torch

from thalweg.interfaces import ConfigError

PLACEHOLDER_QUERY = 998244353
"""The sequence row of a padding query."""


@dataclass(frozen=True, slots=True)
class DecodeRows:
    """Device-side metadata of a decode step, one entry per query token; per-ratio tensors are keyed by ratio."""

    positions: torch.Tensor
    """[T]"""
    valid_mask: torch.Tensor
    """bool [T] false for rows of placeholder sequences."""
    query_indices: torch.Tensor
    """[T] sequence row, `PLACEHOLDER_QUERY` for placeholders."""
    state_slots: torch.Tensor
    """[T]"""
    window_store_slots: torch.Tensor
    """[T] flat ring slot of the query's position."""
    window_reads: torch.Tensor
    """[T, 2] (flat ring slot of the oldest visible position, number of visible positions)."""
    context_lengths: torch.Tensor
    """[T] position + 1."""
    block_tables: torch.Tensor
    """[T, table width]; cells beyond the sequence's own blocks are not written."""
    compressed_positions: dict[int, torch.Tensor]
    """[T] first position of the entry this row completes, else 0."""
    compressed_store_slots: dict[int, torch.Tensor]
    """[T] flat paged slot of that entry, else -1."""
    visible_entries: dict[int, torch.Tensor]
    """[T] number of entries the query may see."""


def decode_metadata(
    query_lengths: torch.Tensor,
    context_lengths: torch.Tensor,
    state_slots: torch.Tensor,
    block_ids: torch.Tensor,
    block_offsets: torch.Tensor,
    is_placeholder: torch.Tensor,
    *,
    tokens_per_block: int,
    window_size: int,
    ring_length: int,
    ratios: Sequence[int],
    table_width: int,
    num_queries: int | None = None,
    max_blocks: int | None = None,
    block_tables: torch.Tensor | None = None,
) -> DecodeRows:
    """Expand per-sequence arrays into the metadata of a decode step.

    query_lengths, context_lengths, state_slots: int [N]; context lengths include the new tokens. block_ids: int, all
    block tables one after the other, that of row i between block_offsets[i] and block_offsets[i+1]. is_placeholder:
    bool [N]. block_tables: optional int32 [T, table_width] to fill; by default a fresh zero tensor.

    num_queries: T. max_blocks: blocks of the longest block table, at most table_width. Each is read back from the
    device if the host does not give it; with both given nothing waits for the device.
    """
    check_ratios(ratios, tokens_per_block)
    device = query_lengths.device
    counts = query_lengths.long()
    total = int(counts.sum()) if num_queries is None else num_queries
    sequence, rank = spread_queries(counts, total)
    position = (context_lengths.long() - counts)[sequence] + rank
    slot = state_slots.long()[sequence]
    placeholder = is_placeholder.bool()[sequence]

    offsets = block_offsets.long()
    widths = offsets[1:] - offsets[:-1]
    if max_blocks is None:
        max_blocks = int(widths.max()) if widths.numel() else 0
    if max_blocks > table_width:
        raise ConfigError(f"table_width is {table_width}; a sequence has {max_blocks} blocks")
    tables = (
        torch.zeros((total, table_width), dtype=torch.int32, device=device) if block_tables is None else block_tables
    )
    if tables.shape != (total, table_width):
        raise ConfigError(f"block_tables is {tuple(tables.shape)}; ({total}, {table_width}) is needed")
    column = torch.arange(table_width, device=device)
    is_own = column < widths[sequence, None]
    source = torch.where(is_own, offsets[sequence, None] + column, 0)
    if block_ids.numel():
        tables.copy_(torch.where(is_own, block_ids[source].type_as(tables), tables))

    visible = torch.clamp(position + 1, max=window_size)
    reads = torch.stack((slot * ring_length + (position - visible + 1) % ring_length, visible), dim=1)
    compressed_positions, store_slots, visible_entries = {}, {}, {}
    for ratio in ratios:
        closes = (position + 1) % ratio == 0
        entry = position // ratio
        entries = tokens_per_block // ratio
        block = tables.gather(1, (entry // entries).clamp(max=table_width - 1)[:, None])[:, 0].long()
        compressed_positions[ratio] = torch.where(closes, entry * ratio, 0).int()
        store_slots[ratio] = torch.where(closes, block * entries + entry % entries, -1).int()
        visible_entries[ratio] = ((position + 1) // ratio).int()
    return DecodeRows(
        positions=position.int(),
        valid_mask=~placeholder,
        query_indices=torch.where(placeholder, PLACEHOLDER_QUERY, sequence).int(),
        state_slots=slot.int(),
        window_store_slots=(slot * ring_length + position % ring_length).int(),
        window_reads=reads.int(),
        context_lengths=(position + 1).int(),
        block_tables=tables,
        compressed_positions=compressed_positions,
        compressed_store_slots=store_slots,
        visible_entries=visible_entries,
    )


def spread_queries(query_lengths: torch.Tensor, num_queries: int) -> tuple[torch.Tensor, torch.Tensor]:
    """Sequence row and place within it of every query token, both int64 [T].

    query_lengths: int [N] that add up to num_queries, T; nothing is read back to check that.
    """
    counts = query_lengths.long()
    rows = torch.arange(counts.numel(), device=counts.device)
    sequence = torch.repeat_interleave(rows, counts, output_size=num_queries)
    rank = torch.arange(num_queries, device=counts.device) - (counts.cumsum(0) - counts)[sequence]
    return sequence, rank


def expand_window_reads(window_reads: torch.Tensor, window_size: int, ring_length: int) -> torch.Tensor:
    """Flat ring slots of each query's window, oldest position first: [T, W].

    window_reads: int [T, 2] (flat slot of the oldest position, count). The slots wrap inside the ring they start in.
    """
    offset, count = _pairs(window_reads, "window_reads")
    base = offset // ring_length * ring_length
    column = torch.arange(window_size, device=window_reads.device)
    slots = base[:, None] + (offset[:, None] + column) % ring_length
    return torch.where(column < count[:, None], slots, -1).int()


def expand_block_entries(
    offset_lengths: torch.Tensor, block_tables: torch.Tensor, entries_per_block: int, width: int
) -> torch.Tensor:
    """Flat paged slots of runs of entries: [T, width].

    offset_lengths: int [T, 2] (offset, count), the offset counting entries through the flattened block_tables int [T,
    w].
    """
    offset, count = _pairs(offset_lengths, "offset_lengths")
    column = torch.arange(width, device=offset_lengths.device)
    is_own = column < count[:, None]
    entry = torch.where(is_own, offset[:, None] + column, 0)
    flat = block_tables.reshape(-1)
    if offset_lengths.numel() and int(entry.max()) >= flat.numel() * entries_per_block:
        raise ConfigError(f"entry {int(entry.max())} lies beyond the {flat.numel()} cells of the block tables")
    slots = flat[entry // entries_per_block].long() * entries_per_block + entry % entries_per_block
    return torch.where(is_own, slots, -1).int()


def expand_ranges(offset_lengths: torch.Tensor, width: int) -> torch.Tensor:
    """Consecutive indices offset, offset + 1, ... of each row, -1 from its count on: [T, width].

    offset_lengths: int [T, 2] (offset, count).
    """
    offset, count = _pairs(offset_lengths, "offset_lengths")
    column = torch.arange(width, device=offset_lengths.device)
    return torch.where(column < count[:, None], offset[:, None] + column, -1).int()


def expand_window_pivots(pivots: torch.Tensor, width: int) -> torch.Tensor:
    """Rows start1.. then start2.. of each query, clipped at `width`, -1 beyond: [T, width].

    pivots: int [T, 4] (start1, len1, start2, len2).
    """
    if pivots.dim() != 2 or pivots.shape[1] != 4:
        raise ConfigError(f"pivots are {tuple(pivots.shape)}; [T, 4] is needed")
    start1, length1, start2, length2 = (part[:, None] for part in pivots.long().unbind(1))
    column = torch.arange(width, device=pivots.device)
    index = torch.where(column < length1, start1 + column, start2 + column - length1)
    return torch.where(column < length1 + length2, index, -1).int()


def cat_kv_indices(window_indices: torch.Tensor, compressed_indices: torch.Tensor, shift: int) -> torch.Tensor:
    """Window columns followed by compressed columns moved by `shift` (the rows that precede the entries): [T, K1 + K2].

    window_indices: int [T, K1]. compressed_indices: int [T, K2]; -1 stays -1.
    """
    moved = torch.where(compressed_indices < 0, -1, compressed_indices + shift)
    return torch.cat((window_indices, moved.type_as(window_indices)), dim=1)


def topk_to_slots(
    topk: torch.Tensor, visible_entries: torch.Tensor, block_tables: torch.Tensor, entries_per_block: int
) -> torch.Tensor:
    """Flat paged slots of selected entries: int32, shaped like topk.

    topk: int [N, K] or [N, Q, K] entry ids that fill the columns from the left, -1 = none. visible_entries: int [N] or
    [N, Q]; columns from this number on become -1, whatever they hold. block_tables: int [N, w].
    """
    if topk.dim() not in (2, 3) or visible_entries.shape != topk.shape[:-1] or block_tables.shape[0] != topk.shape[0]:
        raise ConfigError(
            f"topk {tuple(topk.shape)}, visible_entries {tuple(visible_entries.shape)} and block_tables "
            f"{tuple(block_tables.shape)} do not go together; [N, (Q,) K], [N (, Q)] and [N, w] do"
        )
    column = torch.arange(topk.shape[-1], device=topk.device)
    is_selected = (column < visible_entries[..., None]) & (topk >= 0)
    entry = torch.where(is_selected, topk.long(), 0)
    cells = (entry // entries_per_block).flatten(1)
    if cells.numel() and int(cells.max()) >= block_tables.shape[1]:
        raise ConfigError(f"an entry lies in cell {int(cells.max())}; block_tables has {block_tables.shape[1]}")
    block = block_tables.long().gather(1, cells).reshape(topk.shape)
    return torch.where(is_selected, block * entries_per_block + entry % entries_per_block, -1).int()


def _pairs(pairs: torch.Tensor, name: str) -> tuple[torch.Tensor, torch.Tensor]:
    if pairs.dim() != 2 or pairs.shape[1] != 2:
        raise ConfigError(f"{name} is {tuple(pairs.shape)}; [T, 2] is needed")
    first, second = pairs.long().unbind(1)
    return first, second


def check_ratios(ratios: Sequence[int], tokens_per_block: int) -> None:
    """Raise ConfigError unless every ratio divides a block."""
    for ratio in ratios:
        if ratio < 1 or tokens_per_block % ratio:
            raise ConfigError(f"ratio is {ratio}; divisors of tokens_per_block ({tokens_per_block}) are accepted")


OPS: dict[str, Callable[..., Any]] = {
    "decode_metadata": decode_metadata,
    "expand_window_reads": expand_window_reads,
    "expand_block_entries": expand_block_entries,
    "expand_ranges": expand_ranges,
    "expand_window_pivots": expand_window_pivots,
    "cat_kv_indices": cat_kv_indices,
    "topk_to_slots": topk_to_slots,
}
"""Ops of this module by name, for the registry."""
