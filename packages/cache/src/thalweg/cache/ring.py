"""Ring arithmetic: position p of a sequence lives at row p mod R of its state slot's ring (numpy, host side)."""

from __future__ import annotations

import numpy as np
from numpy.typing import ArrayLike, NDArray

from thalweg.interfaces import ConfigError


def flat_slots(state_slots: ArrayLike, positions: ArrayLike, ring_length: int) -> NDArray[np.int32]:
    """Flat ring slot of positions: state_slot * R + position mod R, broadcast over both inputs."""
    _check_ring(ring_length)
    return (np.asarray(state_slots, np.int64) * ring_length + np.asarray(positions, np.int64) % ring_length).astype(
        np.int32
    )


def prefill_store_slots(
    state_slots: ArrayLike, first_positions: ArrayLike, query_lengths: ArrayLike, ring_length: int
) -> NDArray[np.int32]:
    """[sum of query lengths] flat ring slot of every chunk row, -1 for rows that the same chunk would overwrite.

    state_slots, first_positions, query_lengths: int [N]. Only the last R rows of a chunk are stored, so no slot is
    written twice.
    """
    sequence, rank = expand_rows(query_lengths)
    lengths = np.asarray(query_lengths, np.int64)
    positions = np.asarray(first_positions, np.int64)[sequence] + rank
    slots = flat_slots(np.asarray(state_slots)[sequence], positions, ring_length)
    return np.where(lengths[sequence] - rank <= ring_length, slots, np.int32(-1))


def window_reads(state_slots: ArrayLike, positions: ArrayLike, window_size: int, ring_length: int) -> NDArray[np.int32]:
    """[T, 2] (flat slot of the oldest visible position, number of visible positions) of each query.

    state_slots, positions: int [T]. A query at p sees the min(p + 1, W) positions up to itself.
    """
    positions = np.asarray(positions, np.int64)
    visible = np.minimum(positions + 1, window_size)
    oldest = flat_slots(state_slots, positions - visible + 1, ring_length)
    return np.stack((oldest, visible.astype(np.int32)), axis=1)


def expand_window(reads: NDArray[np.int32], window_size: int, ring_length: int) -> NDArray[np.int32]:
    """[T, W] flat slots that window reads [T, 2] stand for, oldest position first, -1 beyond their number."""
    _check_ring(ring_length)
    offset, count = reads[:, :1].astype(np.int64), reads[:, 1:]
    column = np.arange(window_size)
    slots = offset // ring_length * ring_length + (offset + column) % ring_length
    return np.where(column < count, slots, -1).astype(np.int32)


def window_pivots(
    window_size: int,
    sequences: NDArray[np.int64],
    first_positions: NDArray[np.int64],
    positions: NDArray[np.int64],
    lowest: NDArray[np.int64],
    chunk_begin: NDArray[np.int64],
) -> NDArray[np.int32]:
    """[T, 4] (start1, len1, start2, len2) of each query: history rows, then chunk rows, of the gathered window keys.

    All int64 [T]. The keys are W history rows per sequence, then the rows of the chunks. first_positions: of the
    query's chunk. lowest: first position it sees; len2 is 0 where that is beyond itself. chunk_begin: gathered row that
    the chunk's first position has, or would have where its front was removed.
    """
    low = np.clip(lowest, 0, positions + 1)
    history = np.minimum(low - first_positions + window_size, window_size)
    chunk = np.maximum(low - first_positions, 0)
    return np.stack(
        (
            sequences * window_size + history,
            window_size - history,
            chunk_begin + chunk,
            positions - first_positions - chunk + 1,
        ),
        axis=1,
    ).astype(np.int32)


def min_ring_length(window_size: int, draft_length: int) -> int:
    """Shortest window ring that survives rejected drafts: all of [p - W + 1, p + n] is live in one step."""
    return window_size + draft_length


def min_compressor_ring_length(ratio: int, max_query_length: int) -> int:
    """Shortest compressor ring: an open group plus all rows that one step writes before it reads."""
    return ratio + max_query_length - 1


def expand_rows(query_lengths: ArrayLike) -> tuple[NDArray[np.int64], NDArray[np.int64]]:
    """Sequence of each query row and its rank inside the sequence, both [T], from lengths [N]."""
    lengths = np.asarray(query_lengths, np.int64)
    sequence = np.repeat(np.arange(lengths.size), lengths)
    starts = np.cumsum(lengths) - lengths
    return sequence, np.arange(sequence.size) - starts[sequence]


def _check_ring(ring_length: int) -> None:
    if ring_length < 1:
        raise ConfigError(f"ring_length is {ring_length}; at least 1 is needed (0 = the model has no window)")
