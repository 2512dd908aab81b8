"""Host-side metadata of a decode step: where its rows read and write the cache, as numpy arrays.

The result carries the field names of the metadata that the forward pass takes; the caller turns arrays into tensors.
Letters: N sequences, T query tokens. Arrays are int32 unless said otherwise; dictionaries are keyed by ratio.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any

import numpy as np
from numpy.typing import ArrayLike, NDArray

from thalweg.cache._step_rows import Ints, MetadataShape, StepRows, fields_without, int32, none
from thalweg.cache.ring import flat_slots, window_reads
from thalweg.interfaces import ConfigError
from thalweg.kernels import PLACEHOLDER_QUERY


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
        return fields_without(self, ("positions", "valid_mask"))


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
    rows = StepRows(shape, query_lengths, context_lengths, state_slots, block_offsets, block_ids)
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
        compressed_positions[ratio] = int32(np.where(closes, entry * ratio, 0))
        store_slots[ratio] = int32(np.where(closes, slot, -1))
        visible[ratio] = int32((position + 1) // ratio)
    has_window = shape.window_size > 0
    return DecodeArrays(
        positions=position,
        valid_mask=~placeholder[sequence],
        query_indices=int32(np.where(placeholder[sequence], PLACEHOLDER_QUERY, sequence)),
        state_slots=int32(slots),
        window_store_slots=flat_slots(slots, position, shape.ring_length) if has_window else none(sequence.size),
        window_reads=window_reads(slots, position, shape.window_size, shape.ring_length)
        if has_window
        else np.zeros((sequence.size, 2), np.int32),
        context_lengths=int32(position + 1),
        block_tables=tables[sequence],
        compressed_positions=compressed_positions,
        compressed_store_slots=store_slots,
        visible_entries=visible,
    )
