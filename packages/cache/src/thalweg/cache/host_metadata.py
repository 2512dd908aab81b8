"""Host-side metadata of a step: where its rows read and write the cache, as numpy arrays.

The results carry the field names of the metadata that the forward pass takes; the caller turns the arrays into tensors.
Letters: N sequences, T query tokens, W window size, R ring length, B tokens per block, r compress ratio, E_r compressed
rows of the step. Arrays are int32 unless said otherwise; dictionaries are keyed by ratio.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, fields
from typing import Any

import numpy as np
from numpy.typing import ArrayLike, NDArray

from thalweg.cache.geometry import CacheGeometry
from thalweg.cache.load_plan import LoadPlanBuilder
from thalweg.cache.ring import expand_rows, flat_slots, prefill_store_slots, window_reads
from thalweg.interfaces import ConfigError

PLACEHOLDER_QUERY = 998244353
"""The sequence row of a padding query."""

Ints = NDArray[np.int32]


@dataclass(frozen=True, slots=True)
class MetadataShape:
    """The lengths that index arithmetic depends on."""

    tokens_per_block: int
    window_size: int
    ring_length: int
    ratios: tuple[int, ...]

    def __post_init__(self) -> None:
        for ratio in self.ratios:
            if ratio < 1 or self.tokens_per_block % ratio:
                raise ConfigError(
                    f"ratios has {ratio}; positive divisors of tokens_per_block ({self.tokens_per_block}) are accepted"
                )
        if self.window_size and self.ring_length < self.window_size:
            raise ConfigError(f"ring_length is {self.ring_length}; window_size {self.window_size} needs at least that")

    @classmethod
    def of(cls, geometry: CacheGeometry) -> MetadataShape:
        """The lengths of a geometry."""
        return cls(geometry.tokens_per_block, geometry.window_size, geometry.ring_length, geometry.ratios)


@dataclass(frozen=True, slots=True)
class DecodeArrays:
    """What a decode step reads and writes; one entry per query token."""

    positions: NDArray[np.int64]
    """[T]"""
    valid_mask: NDArray[np.bool_]
    """[T] false on placeholder rows."""
    query_indices: Ints
    """[T] sequence row, `PLACEHOLDER_QUERY` for placeholders."""
    state_slots: Ints
    """[T]"""
    window_store_slots: Ints
    """[T] flat ring slot of the query's position."""
    window_reads: Ints
    """[T, 2] (flat ring slot of the oldest visible position, number of visible positions)."""
    context_lengths: Ints
    """[T] position + 1."""
    block_tables: Ints
    """[T, table width]; 0 beyond the sequence's own blocks."""
    compressed_positions: dict[int, Ints]
    """[T] first position of the entry this row completes, else 0."""
    compressed_store_slots: dict[int, Ints]
    """[T] flat paged slot of that entry, else -1."""
    visible_entries: dict[int, Ints]
    """[T] number of entries the query may see."""

    def metadata(self) -> dict[str, Any]:
        """All fields but positions and valid_mask, by name."""
        return _fields_without(self, ("positions", "valid_mask"))


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
    """[E_r] flat paged slot of each new entry; -1 for a filler row."""
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
        return _fields_without(self, ("positions", "context_offsets"))


def build_decode_metadata(
    shape: MetadataShape,
    query_lengths: ArrayLike,
    context_lengths: ArrayLike,
    state_slots: ArrayLike,
    block_offsets: ArrayLike,
    block_ids: ArrayLike,
    table_width: int,
    is_placeholder: ArrayLike | None = None,
) -> DecodeArrays:
    """The metadata of a decode step.

    query_lengths, context_lengths, state_slots: int [N]; context lengths include the new tokens. block_ids: all block
    tables one after the other, row i at block_offsets[i]..block_offsets[i+1]. is_placeholder: bool [N].
    """
    rows = _Rows(shape, query_lengths, context_lengths, state_slots, block_offsets, block_ids)
    sequence, position = rows.sequence, rows.position
    tables = rows.tables(table_width)
    placeholder = np.zeros(rows.lengths.size, bool) if is_placeholder is None else np.asarray(is_placeholder, bool)
    if placeholder.size != rows.lengths.size:
        raise ConfigError(f"is_placeholder has {placeholder.size} entries; one per row, {rows.lengths.size}, is needed")
    slots = rows.slots[sequence]
    compressed_positions, store_slots, visible = {}, {}, {}
    for ratio in shape.ratios:
        closes = (position + 1) % ratio == 0
        entry = position // ratio
        entries = shape.tokens_per_block // ratio
        cell = np.minimum(entry // entries, table_width - 1)
        slot = tables[sequence, cell].astype(np.int64) * entries + entry % entries
        compressed_positions[ratio] = _int32(np.where(closes, entry * ratio, 0))
        store_slots[ratio] = _int32(np.where(closes, slot, -1))
        visible[ratio] = _int32((position + 1) // ratio)
    has_window = shape.window_size > 0
    return DecodeArrays(
        positions=position,
        valid_mask=~placeholder[sequence],
        query_indices=_int32(np.where(placeholder[sequence], PLACEHOLDER_QUERY, sequence)),
        state_slots=_int32(slots),
        window_store_slots=flat_slots(slots, position, shape.ring_length) if has_window else _none(sequence.size),
        window_reads=window_reads(slots, position, shape.window_size, shape.ring_length)
        if has_window
        else np.zeros((sequence.size, 2), np.int32),
        context_lengths=_int32(position + 1),
        block_tables=tables[sequence],
        compressed_positions=compressed_positions,
        compressed_store_slots=store_slots,
        visible_entries=visible,
    )


def build_prefill_metadata(
    shape: MetadataShape,
    query_lengths: ArrayLike,
    context_lengths: ArrayLike,
    state_slots: ArrayLike,
    block_offsets: ArrayLike,
    block_ids: ArrayLike,
    window_valid_start: ArrayLike | None = None,
) -> PrefillArrays:
    """The metadata of a prefill step.

    query_lengths, context_lengths, state_slots: int [N]; a chunk covers positions [context - query, context).
    block_ids, block_offsets: as for `build_decode_metadata`. window_valid_start: int [N] first position whose window
    state is valid; None = 0 for all.
    """
    rows = _Rows(shape, query_lengths, context_lengths, state_slots, block_offsets, block_ids)
    starts = np.zeros(rows.lengths.size) if window_valid_start is None else window_valid_start
    valid = np.asarray(starts, np.int64)
    if valid.size != rows.lengths.size:
        raise ConfigError(f"window_valid_start has {valid.size} entries; one per row, {rows.lengths.size}, is needed")
    valid = np.maximum(valid, 0)
    store_slots, segments, pivots = _prefill_window(shape, rows, valid)
    compressed = {ratio: _prefill_entries(shape.tokens_per_block // ratio, ratio, rows) for ratio in shape.ratios}
    loads = {ratio: _prefill_loads(shape.tokens_per_block // ratio, ratio, rows) for ratio in shape.ratios}
    return PrefillArrays(
        positions=rows.position,
        query_offsets=_offsets(rows.lengths),
        context_offsets=_offsets(rows.contexts),
        state_slots=_int32(rows.slots),
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


class _Rows:
    """The checked sequences of a step, and their query rows."""

    def __init__(
        self,
        shape: MetadataShape,
        query_lengths: ArrayLike,
        context_lengths: ArrayLike,
        state_slots: ArrayLike,
        block_offsets: ArrayLike,
        block_ids: ArrayLike,
    ) -> None:
        self.lengths = np.asarray(query_lengths, np.int64)
        self.contexts = np.asarray(context_lengths, np.int64)
        self.slots = np.asarray(state_slots, np.int64)
        self.block_offsets = np.asarray(block_offsets, np.int64)
        self.block_ids = np.asarray(block_ids, np.int64)
        count = self.lengths.size
        for name, array, size in (
            ("context_lengths", self.contexts, count),
            ("state_slots", self.slots, count),
            ("block_offsets", self.block_offsets, count + 1),
        ):
            if array.size != size:
                raise ConfigError(f"{name} has {array.size} entries; {count} query lengths need {size}")
        self.first = self.contexts - self.lengths
        if count and (self.lengths.min() < 1 or self.first.min() < 0):
            row = int(np.argmax((self.lengths < 1) | (self.first < 0)))
            raise ConfigError(
                f"row {row} has query length {self.lengths[row]} and context length {self.contexts[row]}; "
                "1 <= query <= context is needed"
            )
        self.num_blocks = np.diff(self.block_offsets)
        needed = self._blocks_needed(shape)
        if (self.num_blocks < needed).any():
            row = int(np.argmax(self.num_blocks < needed))
            raise ConfigError(
                f"row {row} has {self.num_blocks[row]} blocks; its {self.contexts[row]} tokens need {needed[row]}"
            )
        self.sequence, rank = expand_rows(self.lengths)
        self.position = self.first[self.sequence] + rank

    def _blocks_needed(self, shape: MetadataShape) -> NDArray[np.int64]:
        """Blocks that hold at least one entry which exists after the step."""
        needed = np.zeros(self.lengths.size, np.int64)
        for ratio in shape.ratios:
            needed = np.maximum(needed, -(-(self.contexts // ratio) // (shape.tokens_per_block // ratio)))
        return needed

    def table(self, row: int) -> NDArray[np.int64]:
        """The blocks of a sequence."""
        return self.block_ids[self.block_offsets[row] : self.block_offsets[row + 1]]

    def tables(self, width: int) -> Ints:
        """[N, width] block tables, 0 beyond a sequence's own blocks."""
        if width < 1 or (self.num_blocks.size and self.num_blocks.max() > width):
            raise ConfigError(f"table_width is {width}; a sequence has {self.num_blocks.max(initial=0)} blocks")
        tables = np.zeros((self.lengths.size, width), np.int32)
        row, column = expand_rows(self.num_blocks)
        tables[row, column] = self.block_ids
        return tables


def _prefill_window(shape: MetadataShape, rows: _Rows, valid: NDArray[np.int64]) -> tuple[Ints, Ints, Ints]:
    """Store slots [T], load plan [m, 4] and pivots [T, 4] of the window."""
    window, total = shape.window_size, rows.sequence.size
    if window == 0:
        return _none(total), np.zeros((0, 4), np.int32), np.zeros((total, 4), np.int32)
    store_slots = prefill_store_slots(rows.slots, rows.first, rows.lengths, shape.ring_length)
    plan = LoadPlanBuilder(shape.ring_length)
    padding = np.clip(valid - (rows.first - window), 0, window)
    for slot, first, pad in zip(rows.slots.tolist(), rows.first.tolist(), padding.tolist(), strict=True):
        plan.zero_fill(pad)
        if pad < window:
            plan.ring(slot, first - window + pad, first)

    sequence, position = rows.sequence, rows.position
    first = rows.first[sequence]
    low = np.maximum(np.maximum(position - window + 1, valid[sequence]), 0)
    low = np.minimum(low, position)  # a query always sees itself
    row_of_first = (np.cumsum(rows.lengths) - rows.lengths)[sequence]
    history = np.minimum(low - first + window, window)
    chunk = np.maximum(low - first, 0)
    pivots = np.stack(
        (
            sequence * window + history,
            window - history,
            rows.lengths.size * window + row_of_first + chunk,
            position - first - chunk + 1,
        ),
        axis=1,
    )
    return store_slots, plan.build().segments, _int32(pivots)


def _prefill_entries(entries: int, ratio: int, rows: _Rows) -> tuple[Ints, Ints, Ints]:
    """Offsets [N+1], positions [E] and store slots [E] of the entries that the chunks complete."""
    counts = rows.contexts // ratio - rows.first // ratio
    padded = np.maximum(counts, 1)
    sequence, rank = expand_rows(padded)
    is_entry = counts[sequence] > 0
    entry = np.where(is_entry, rows.first[sequence] // ratio + rank, 0)
    cell = np.where(is_entry, rows.block_offsets[sequence] + entry // entries, 0)
    block = rows.block_ids[cell] if rows.block_ids.size else np.zeros(cell.size, np.int64)
    slots = np.where(is_entry, block * entries + entry % entries, -1)
    return _offsets(padded), _int32(entry * ratio), _int32(slots)


def _prefill_loads(entries: int, ratio: int, rows: _Rows) -> tuple[Ints, int, Ints, Ints]:
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
    return built.segments, built.num_rows, _int32(begin), _int32(begin + (rows.position + 1) // ratio)


def _fields_without(arrays: DecodeArrays | PrefillArrays, names: Sequence[str]) -> dict[str, Any]:
    return {field.name: getattr(arrays, field.name) for field in fields(arrays) if field.name not in names}


def _offsets(counts: NDArray[np.int64]) -> Ints:
    return _int32(np.concatenate(([0], np.cumsum(counts))))


def _int32(values: NDArray[Any]) -> Ints:
    return np.ascontiguousarray(values, np.int32)


def _none(count: int) -> Ints:
    return np.full(count, -1, np.int32)
