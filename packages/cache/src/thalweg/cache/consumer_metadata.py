"""Host-side metadata of the consumer layers in a prefill step under bounded replay, as numpy arrays.

Letters: N sequences, T query tokens of the step, Q of them kept, L tokens that a sequence has now. Arrays are int32
unless said otherwise; dictionaries are keyed by ratio.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any

import numpy as np
from numpy.typing import ArrayLike, NDArray

from thalweg.cache._step_rows import Ints, MetadataShape, fields_without, int32, offsets_of, per_sequence
from thalweg.cache.prefill_metadata import PrefillArrays
from thalweg.cache.replay import ConsumerReplay, ReplayMode
from thalweg.cache.ring import expand_rows, window_pivots
from thalweg.interfaces import ConfigError


@dataclass(frozen=True, slots=True)
class ConsumerArrays:
    """Which rows the consumer layers run over, and what those read and write."""

    query_rows: Ints | None
    """[Q] rows of the step, increasing; None = all of them (mode mask)."""
    query_offsets: Ints
    """[N+1] boundaries of each sequence's rows, at least one each."""
    positions: NDArray[np.int64]
    """[Q]"""
    window_store_slots: Ints
    """[Q] flat ring slot, -1 = do not store."""
    window_pivots: Ints
    """[Q, 4] as in the step's metadata, over history and kept rows; len2 = 0: the row sees no window key."""
    entry_begin: dict[int, Ints]
    """[Q]"""
    entry_end: dict[int, Ints]
    """[Q]"""

    def metadata(self) -> dict[str, Any]:
        """All fields by name."""
        return fields_without(self, ())


def build_consumer_metadata(
    shape: MetadataShape,
    prefill: PrefillArrays,
    replay: ConsumerReplay,
    sequence_lengths: ArrayLike,
    window_valid_start: ArrayLike | None = None,
    consumer_first: ArrayLike | None = None,
) -> ConsumerArrays | None:
    """What the consumer layers run over in a step; None when replay is off: the step's own metadata holds for them.

    prefill: the step's metadata. sequence_lengths: int [N] L of each sequence, of which the step computes a chunk.
    window_valid_start: int [N] as the step's. consumer_first: int [N] first position that the sequence ever ran
    through consumer layers, so that none reads a ring row which nobody wrote; None = 0 for all.
    """
    if replay.mode is ReplayMode.OFF:
        return None
    chunks = _Chunks(prefill, sequence_lengths, window_valid_start, consumer_first)
    start = np.maximum(chunks.totals - replay.keep_tokens, chunks.consumer_first)
    is_compact = replay.mode is ReplayMode.COMPACT
    # One row stays where all of a chunk lies before the kept range: every sequence has a row to sample from.
    removed = np.clip(start - chunks.first, 0, chunks.lengths - 1) if is_compact else np.zeros_like(start)
    kept = chunks.lengths - removed
    sequence, rank = expand_rows(kept)
    rows = (np.cumsum(chunks.lengths) - kept)[sequence] + rank
    positions = prefill.positions[rows]

    stores = prefill.window_store_slots[rows]
    if is_compact:
        stores = np.where(positions >= start[sequence], stores, np.int32(-1))
    return ConsumerArrays(
        query_rows=int32(rows) if is_compact else None,
        query_offsets=offsets_of(kept),
        positions=positions,
        window_store_slots=int32(stores),
        window_pivots=_pivots(shape.window_size, chunks, start, removed, sequence, positions),
        entry_begin={ratio: int32(begin[rows]) for ratio, begin in prefill.entry_begin.items()},
        entry_end={ratio: int32(end[rows]) for ratio, end in prefill.entry_end.items()},
    )


class _Chunks:
    """The chunks of a step [N] with what the caller says of their sequences, checked."""

    def __init__(
        self,
        prefill: PrefillArrays,
        sequence_lengths: ArrayLike,
        window_valid_start: ArrayLike | None,
        consumer_first: ArrayLike | None,
    ) -> None:
        count = prefill.state_slots.size
        contexts = np.diff(prefill.context_offsets).astype(np.int64)
        self.lengths = np.diff(prefill.query_offsets).astype(np.int64)
        self.first = contexts - self.lengths
        self.totals = per_sequence("sequence_lengths", sequence_lengths, count)
        self.valid = per_sequence("window_valid_start", window_valid_start, count)
        self.consumer_first = per_sequence("consumer_first", consumer_first, count)
        if (self.totals < contexts).any():
            row = int(np.argmax(self.totals < contexts))
            raise ConfigError(f"sequence_lengths of row {row} is {self.totals[row]}; its chunk ends at {contexts[row]}")
        for name, values in (("window_valid_start", self.valid), ("consumer_first", self.consumer_first)):
            if (values > self.first).any():
                row = int(np.argmax(values > self.first))
                raise ConfigError(f"{name} of row {row} is {values[row]}; its chunk begins at {self.first[row]}")


def _pivots(
    window: int,
    chunks: _Chunks,
    start: NDArray[np.int64],
    removed: NDArray[np.int64],
    sequence: NDArray[np.int64],
    positions: NDArray[np.int64],
) -> Ints:
    """[Q, 4] window pivots of the kept rows; start, removed [N], sequence, positions [Q]."""
    if window == 0:
        return np.zeros((positions.size, 4), np.int32)
    kept = chunks.lengths - removed
    begin = chunks.lengths.size * window + np.cumsum(kept) - kept - removed
    low = np.maximum(positions - window + 1, np.maximum(start, chunks.valid)[sequence])
    return window_pivots(window, sequence, chunks.first[sequence], positions, low, begin[sequence])
