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
from thalweg.kernels.reference.numerics import MOST, check_count, check_integers, check_shape

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
    check_decode(
        query_lengths, context_lengths, state_slots, block_ids, block_offsets, is_placeholder, tokens_per_block,
        window_size, ring_length, ratios, table_width, num_queries, max_blocks,
    )  # fmt: skip
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
        check_max_blocks(max_blocks, table_width)
    if device.type == "cpu" and int(offsets[-1]) > block_ids.numel():
        raise ConfigError(f"block_ids has {block_ids.numel()} entries; block_offsets reach {int(offsets[-1])}")
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

    query_lengths: int [N] that add up to num_queries, T; nothing is read back from a device to check that.
    """
    check_lengths(query_lengths, num_queries)
    counts = query_lengths.long()
    rows = torch.arange(counts.numel(), device=counts.device)
    sequence = torch.repeat_interleave(rows, counts, output_size=num_queries)
    rank = torch.arange(num_queries, device=counts.device) - (counts.cumsum(0) - counts)[sequence]
    return sequence, rank


def check_lengths(query_lengths: torch.Tensor, num_queries: int) -> None:
    """Raise ConfigError unless lengths are int [N] and, where that costs no wait for a device, add up."""
    check_integers("query_lengths", query_lengths, ("N",))
    if query_lengths.device.type != "cpu":
        return
    total = int(query_lengths.sum())
    if total != num_queries or (total and int(query_lengths.min()) < 0):
        raise ConfigError(
            f"query_lengths is {query_lengths.tolist()}; numbers that add up to {num_queries} are required"
        )


def expand_window_reads(window_reads: torch.Tensor, window_size: int, ring_length: int) -> torch.Tensor:
    """Flat ring slots of each query's window, oldest position first: [T, W].

    window_reads: int [T, 2] (flat slot of the oldest position, count). The slots wrap inside the ring they start in.
    """
    check_window_reads(window_reads, window_size, ring_length)
    offset, count = window_reads.long().unbind(1)
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
    check_integers("offset_lengths", offset_lengths, ("T", 2))
    check_integers("block_tables", block_tables)
    check_count("entries_per_block", entries_per_block, 1)
    check_count("width", width)
    offset, count = offset_lengths.long().unbind(1)
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
    check_integers("offset_lengths", offset_lengths, ("T", 2))
    check_count("width", width)
    offset, count = offset_lengths.long().unbind(1)
    column = torch.arange(width, device=offset_lengths.device)
    return torch.where(column < count[:, None], offset[:, None] + column, -1).int()


def expand_window_pivots(pivots: torch.Tensor, width: int) -> torch.Tensor:
    """Rows start1.. then start2.. of each query, clipped at `width`, -1 beyond: [T, width].

    pivots: int [T, 4] (start1, len1, start2, len2).
    """
    check_pivots(pivots, width)
    start1, length1, start2, length2 = (part[:, None] for part in pivots.long().unbind(1))
    column = torch.arange(width, device=pivots.device)
    index = torch.where(column < length1, start1 + column, start2 + column - length1)
    return torch.where(column < length1 + length2, index, -1).int()


def cat_kv_indices(window_indices: torch.Tensor, compressed_indices: torch.Tensor, shift: int) -> torch.Tensor:
    """Window columns followed by compressed columns moved by `shift` (the rows that precede the entries): [T, K1 + K2].

    window_indices: int [T, K1]. compressed_indices: int [T, K2]; -1 stays -1.
    """
    check_kv_indices(window_indices, compressed_indices, shift)
    moved = torch.where(compressed_indices < 0, -1, compressed_indices + shift)
    return torch.cat((window_indices, moved.type_as(window_indices)), dim=1)


def topk_to_slots(
    topk: torch.Tensor, visible_entries: torch.Tensor, block_tables: torch.Tensor, entries_per_block: int
) -> torch.Tensor:
    """Flat paged slots of selected entries: int32, shaped like topk.

    topk: int [N, K] or [N, Q, K] entry ids that fill the columns from the left, -1 = none. visible_entries: int [N] or
    [N, Q]; columns from this number on become -1, whatever they hold. block_tables: int [N, w].
    """
    check_topk(topk, visible_entries, block_tables, entries_per_block)
    column = torch.arange(topk.shape[-1], device=topk.device)
    is_selected = (column < visible_entries[..., None]) & (topk >= 0)
    entry = torch.where(is_selected, topk.long(), 0)
    cells = (entry // entries_per_block).flatten(1)
    if cells.numel() and int(cells.max()) >= block_tables.shape[1]:
        raise ConfigError(f"an entry lies in cell {int(cells.max())}; block_tables has {block_tables.shape[1]}")
    block = block_tables.long().gather(1, cells).reshape(topk.shape)
    return torch.where(is_selected, block * entries_per_block + entry % entries_per_block, -1).int()


def check_decode(
    query_lengths: torch.Tensor,
    context_lengths: torch.Tensor,
    state_slots: torch.Tensor,
    block_ids: torch.Tensor,
    block_offsets: torch.Tensor,
    is_placeholder: torch.Tensor,
    tokens_per_block: int,
    window_size: int,
    ring_length: int,
    ratios: Sequence[int],
    table_width: int,
    num_queries: int | None,
    max_blocks: int | None,
) -> None:
    """Raise ConfigError unless the arguments of `decode_metadata` go together; block_tables are not looked at."""
    check_integers("query_lengths", query_lengths, ("N",))
    (count,) = query_lengths.shape
    check_integers("context_lengths", context_lengths, (count,))
    check_integers("state_slots", state_slots, (count,))
    check_integers("block_ids", block_ids, ("blocks",))
    check_integers("block_offsets", block_offsets, (count + 1,))
    check_shape("is_placeholder", is_placeholder, (count,))
    check_count("tokens_per_block", tokens_per_block, 1)
    check_count("window_size", window_size)  # 0: drafts without windows
    check_count("ring_length", ring_length, 1)
    check_count("table_width", table_width, 1 if ratios else 0)
    check_ratios(ratios, tokens_per_block)
    if num_queries is not None:
        check_count("num_queries", num_queries)
    if max_blocks is not None:
        check_max_blocks(max_blocks, table_width)


def check_max_blocks(max_blocks: int, table_width: int) -> None:
    """Raise ConfigError unless a table has room for the blocks of the longest one."""
    check_count("max_blocks", max_blocks)
    if max_blocks > table_width:
        raise ConfigError(f"table_width is {table_width}; a sequence has {max_blocks} blocks")


def check_window_reads(window_reads: torch.Tensor, window_size: int, ring_length: int) -> None:
    """Raise ConfigError unless `expand_window_reads` takes these."""
    check_integers("window_reads", window_reads, ("T", 2))
    check_count("window_size", window_size)
    check_count("ring_length", ring_length, 1)


def check_pivots(pivots: torch.Tensor, width: int) -> None:
    """Raise ConfigError unless `expand_window_pivots` takes these."""
    check_integers("pivots", pivots, ("T", 4))
    check_count("width", width)


def check_kv_indices(window_indices: torch.Tensor, compressed_indices: torch.Tensor, shift: int) -> None:
    """Raise ConfigError unless `cat_kv_indices` takes these."""
    check_integers("window_indices", window_indices, ("T", "K"))
    check_integers("compressed_indices", compressed_indices, (window_indices.shape[0], "K"))
    check_count("shift", shift, -MOST - 1)


def check_topk(
    topk: torch.Tensor, visible_entries: torch.Tensor, block_tables: torch.Tensor, entries_per_block: int
) -> None:
    """Raise ConfigError unless `topk_to_slots` takes these."""
    fits = topk.dim() in (2, 3) and visible_entries.shape == topk.shape[:-1] and block_tables.dim() == 2
    if not fits or block_tables.shape[0] != topk.shape[0]:
        raise ConfigError(
            f"topk {tuple(topk.shape)}, visible_entries {tuple(visible_entries.shape)} and block_tables "
            f"{tuple(block_tables.shape)} do not go together; [N, (Q,) K], [N (, Q)] and [N, w] do"
        )
    check_integers("topk", topk)
    check_integers("visible_entries", visible_entries)
    check_integers("block_tables", block_tables)
    check_count("entries_per_block", entries_per_block, 1)


def check_ratios(ratios: Sequence[int], tokens_per_block: int) -> None:
    """Raise ConfigError unless every ratio divides a block."""
    for ratio in ratios:
        if not isinstance(ratio, int) or ratio < 1 or tokens_per_block % ratio:
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
