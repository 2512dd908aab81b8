"""Host-side metadata of a prefill step: where its chunks read and write the cache, as numpy arrays.

The result carries the field names of the metadata that the forward pass takes; the caller turns arrays into tensors.
Letters: N sequences, T query tokens, W window size, E_r compressed rows of the step. Arrays are int32 unless said
otherwise; dictionaries are keyed by ratio.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any

import numpy as np
from numpy.typing import ArrayLike, NDArray

from thalweg.cache._step_rows import (
    Ints,
    MetadataShape,
    StepRows,
    fields_without,
    int32,
    none,
    offsets_of,
    per_sequence,
)
from thalweg.cache.load_plan import LoadPlanBuilder
from thalweg.cache.ring import expand_rows, prefill_store_slots, window_pivots
from thalweg.interfaces import ConfigError


@dataclass(frozen=True, slots=True)
class PrefillArrays:
    """What the chunks of a prefill step read and write."""

    positions: NDArray[np.int64]
    """[T]"""
    query_offsets: Ints
    """[N+1] chunk boundaries in the T rows."""
    context_offsets: Ints
    """[N+1] running sum of the context lengths."""
    state_slots: Ints
    """[N]"""
    window_store_slots: Ints
    """[T] flat ring slot, -1 = do not store."""
    window_segments: Ints
    """[m, 4] load plan of the history rows: W per sequence."""
    window_pivots: Ints
    """[T, 4] (start1, len1, start2, len2): history rows, then chunk rows, of the gathered window keys."""
    compressed_offsets: dict[int, Ints]
    """[N+1] boundaries of each sequence's compressed rows of this step, at least one row each."""
    compressed_positions: dict[int, Ints]
    """[E_r] first position of each new entry; 0 for a filler row."""
    compressed_store_slots: dict[int, Ints]
    """[E_r] flat paged slot of each new entry; -1 for a filler row and for a reused entry."""
    compressed_segments: dict[int, Ints]
    """[m, 4] load plan of all visible entries, at least one (zero) row per sequence."""
    num_compressed_rows: dict[int, int]
    """Rows that the load plan of the ratio yields."""
    entry_begin: dict[int, Ints]
    """[T] first gathered row of the query's sequence."""
    entry_end: dict[int, Ints]
    """[T] one past the last gathered row the query may see."""

    def metadata(self) -> dict[str, Any]:
        """All fields but positions and context_offsets, by name."""
        return fields_without(self, ("positions", "context_offsets"))


def build_prefill_metadata(
    shape: MetadataShape,
    query_lengths: ArrayLike,
    context_lengths: ArrayLike,
    state_slots: ArrayLike,
    block_offsets: ArrayLike,
    block_ids: ArrayLike,
    window_valid_start: ArrayLike | None = None,
    reused_lengths: ArrayLike | None = None,
) -> PrefillArrays:
    """The metadata of a prefill step.

    query_lengths, context_lengths, state_slots: int [N]; a chunk covers positions [context - query, context).
    block_ids, block_offsets: as for `build_decode_metadata`. window_valid_start: int [N] first position whose window
    state is valid, at most the chunk's first; None = 0 for all. reused_lengths: int [N] tokens whose blocks a prefix
    hit brought: entries that lie in them wholly are read and never written, even where their tokens run again (the
    blocks may be shared, and what runs again is less exact); None = 0 for all.
    """
    rows = StepRows(shape, query_lengths, context_lengths, state_slots, block_offsets, block_ids)
    valid = per_sequence("window_valid_start", window_valid_start, rows.lengths.size)
    reused = per_sequence("reused_lengths", reused_lengths, rows.lengths.size)
    if (valid > rows.first).any():
        row = int(np.argmax(valid > rows.first))
        raise ConfigError(f"window_valid_start of row {row} is {valid[row]}; its chunk begins at {rows.first[row]}")
    store_slots, segments, pivots = _prefill_window(shape, rows, valid)
    compressed = {
        ratio: _prefill_entries(shape.tokens_per_block // ratio, ratio, rows, reused) for ratio in shape.ratios
    }
    loads = {ratio: _prefill_loads(shape.tokens_per_block // ratio, ratio, rows) for ratio in shape.ratios}
    return PrefillArrays(
        positions=rows.position,
        query_offsets=offsets_of(rows.lengths),
        context_offsets=offsets_of(rows.contexts),
        state_slots=int32(rows.slots),
        window_store_slots=store_slots,
        window_segments=segments,
        window_pivots=pivots,
        compressed_offsets={ratio: parts[0] for ratio, parts in compressed.items()},
        compressed_positions={ratio: parts[1] for ratio, parts in compressed.items()},
        compressed_store_slots={ratio: parts[2] for ratio, parts in compressed.items()},
        compressed_segments={ratio: parts[0] for ratio, parts in loads.items()},
        num_compressed_rows={ratio: parts[1] for ratio, parts in loads.items()},
        entry_begin={ratio: parts[2] for ratio, parts in loads.items()},
        entry_end={ratio: parts[3] for ratio, parts in loads.items()},
    )


def _prefill_window(shape: MetadataShape, rows: StepRows, valid: NDArray[np.int64]) -> tuple[Ints, Ints, Ints]:
    """Store slots [T], load plan [m, 4] and pivots [T, 4] of the window."""
    window, total = shape.window_size, rows.sequence.size
    if window == 0:
        return none(total), np.zeros((0, 4), np.int32), np.zeros((total, 4), np.int32)
    store_slots = prefill_store_slots(rows.slots, rows.first, rows.lengths, shape.ring_length)
    plan = LoadPlanBuilder(shape.ring_length)
    padding = np.clip(valid - (rows.first - window), 0, window)
    for slot, first, pad in zip(rows.slots.tolist(), rows.first.tolist(), padding.tolist(), strict=True):
        plan.zero_fill(pad)
        if pad < window:
            plan.ring(slot, first - window + pad, first)

    first = rows.first[rows.sequence]
    low = np.maximum(rows.position - window + 1, valid[rows.sequence])
    begin = rows.lengths.size * window + (np.cumsum(rows.lengths) - rows.lengths)[rows.sequence]
    pivots = window_pivots(window, rows.sequence, first, rows.position, low, begin)
    return store_slots, plan.build().segments, pivots


def _prefill_entries(entries: int, ratio: int, rows: StepRows, reused: NDArray[np.int64]) -> tuple[Ints, Ints, Ints]:
    """Offsets [N+1], positions [E] and store slots [E] of the entries that the chunks complete."""
    counts = rows.contexts // ratio - rows.first // ratio
    padded = np.maximum(counts, 1)
    sequence, rank = expand_rows(padded)
    is_entry = counts[sequence] > 0
    entry = np.where(is_entry, rows.first[sequence] // ratio + rank, 0)
    cell = np.where(is_entry, rows.block_offsets[sequence] + entry // entries, 0)
    block = rows.block_ids[cell] if rows.block_ids.size else np.zeros(cell.size, np.int64)
    is_written = is_entry & ((entry + 1) * ratio > reused[sequence])
    slots = np.where(is_written, block * entries + entry % entries, -1)
    return offsets_of(padded), int32(entry * ratio), int32(slots)


def _prefill_loads(entries: int, ratio: int, rows: StepRows) -> tuple[Ints, int, Ints, Ints]:
    """Load plan [m, 4] of all visible entries, its number of rows, and each query's range [T], [T] in them."""
    plan = LoadPlanBuilder(entries)
    for row, count in enumerate((rows.contexts // ratio).tolist()):
        if count:
            plan.paged(rows.table(row), 0, count)
        else:
            plan.zero_fill(1)
    gathered = np.maximum(rows.contexts // ratio, 1)
    begin = (np.cumsum(gathered) - gathered)[rows.sequence]
    built = plan.build()
    return built.segments, built.num_rows, int32(begin), int32(begin + (rows.position + 1) // ratio)
