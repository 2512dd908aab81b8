"""Prefill rows over context-parallel ranks: who computes which rows, and how the kept ones change hands.

Each chunk is cut into 2C pieces for C ranks; rank c takes pieces c and 2C - 1 - c, which balances causal attention.
Ranks hold whole caches, so everything of a step that is not per query row stays as it is. bounded_replay.md 4.1.
"""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import dataclass

import numpy as np
from numpy.typing import ArrayLike, NDArray

from thalweg.cache._step_rows import Ints, int32
from thalweg.cache.ring import expand_rows
from thalweg.interfaces import ConfigError


@dataclass(frozen=True, slots=True)
class MirrorRows:
    """The rows of one rank, M of the step's T."""

    rows: Ints
    """[M] row of the step, -1 = padding."""
    gathered: Ints
    """[T] where each row of the step lies when all ranks' rows stand one rank after another."""
    entry_begin: dict[int, Ints]
    """[M] first gathered compressed row of the row's sequence, by ratio."""
    entry_end: dict[int, Ints]
    """[M] one past the last one that the row may see; entry_begin for padding."""


def mirror_length(query_lengths: ArrayLike, num_ranks: int) -> int:
    """Rows per rank, padding included."""
    return int(2 * _pieces(np.asarray(query_lengths, np.int64), num_ranks).sum())


def mirror_rows(
    query_lengths: ArrayLike, context_lengths: ArrayLike, num_ranks: int, rank: int, ratios: Iterable[int]
) -> MirrorRows:
    """The rows of one rank; lengths int [N], with context lengths as of the whole step where rows were removed."""
    lengths, contexts = np.asarray(query_lengths, np.int64), np.asarray(context_lengths, np.int64)
    if not 0 <= rank < num_ranks:
        raise ConfigError(f"rank is {rank}; 0..{num_ranks - 1} are accepted")
    places = _Places(lengths, num_ranks)
    local, sequence = places.local[rank], places.sequence
    is_row = local < lengths[sequence]
    begins, ends = {}, {}
    for ratio in ratios:
        gathered = np.maximum(contexts // ratio, 1)
        begin = (np.cumsum(gathered) - gathered)[sequence]
        visible = (contexts[sequence] - lengths[sequence] + local + 1) // ratio
        begins[ratio], ends[ratio] = int32(begin), int32(np.where(is_row, begin + visible, begin))
    rows = np.where(is_row, (np.cumsum(lengths) - lengths)[sequence] + local, -1)
    return MirrorRows(int32(rows), int32(places.gathered_rows()), begins, ends)


@dataclass(frozen=True, slots=True)
class BoundaryExchange:
    """How ranks hand each other the rows that consumer layers keep; Q kept rows, C ranks, P rows from each."""

    contributed: Ints
    """[C, P] row of each rank's own rows, -1 = padding."""
    gathered: Ints
    """[Q] where each kept row lies when all contributions stand one rank after another."""


def boundary_exchange(query_lengths: ArrayLike, keep_lengths: ArrayLike, num_ranks: int) -> BoundaryExchange:
    """The exchange before the first consumer layer; keep_lengths int [N]: last rows of each chunk that stay."""
    lengths, kept = np.asarray(query_lengths, np.int64), np.asarray(keep_lengths, np.int64)
    if kept.shape != lengths.shape or (kept < 1).any() or (kept > lengths).any():
        raise ConfigError(f"keep_lengths is {kept.tolist()}; 1 to {lengths.tolist()} are accepted, one per sequence")
    places = _Places(lengths, num_ranks)
    sequence = places.sequence
    is_kept = (places.local >= (lengths - kept)[sequence]) & (places.local < lengths[sequence])
    width = int(is_kept.sum(axis=1).max(initial=0))
    contributed = np.full((num_ranks, width), -1, np.int64)
    gathered = np.empty(int(kept.sum()), np.int64)
    first_kept = np.cumsum(kept) - lengths
    for rank in range(num_ranks):
        mine = np.flatnonzero(is_kept[rank])
        contributed[rank, : mine.size] = mine
        gathered[first_kept[sequence[mine]] + places.local[rank, mine]] = rank * width + np.arange(mine.size)
    return BoundaryExchange(int32(contributed), int32(gathered))


class _Places:
    """Where the rows of chunks lie on C ranks; `sequence` [M] and `local` [C, M] of each rank's rows."""

    def __init__(self, lengths: NDArray[np.int64], num_ranks: int) -> None:
        pieces = _pieces(lengths, num_ranks)
        self.lengths = lengths
        self.sequence, rank_in_two = expand_rows(2 * pieces)
        piece = pieces[self.sequence]
        is_second = rank_in_two >= piece
        ranks = np.arange(num_ranks)[:, None]
        self.local = (
            piece * np.where(is_second, 2 * num_ranks - 1 - ranks, ranks) + rank_in_two - np.where(is_second, piece, 0)
        )
        """[C, M] row inside the chunk; at or beyond its length = padding."""

    def gathered_rows(self) -> NDArray[np.int64]:
        """[T] place of each row of the step in the ranks' rows, one rank after another."""
        is_row = self.local < self.lengths[self.sequence]
        step_row = (np.cumsum(self.lengths) - self.lengths)[self.sequence] + self.local
        places = np.empty(int(self.lengths.sum()), np.int64)
        places[step_row[is_row]] = np.flatnonzero(is_row)
        return places


def _pieces(lengths: NDArray[np.int64], num_ranks: int) -> NDArray[np.int64]:
    if num_ranks < 1:
        raise ConfigError(f"num_ranks is {num_ranks}; at least 1 is needed")
    return -(-lengths // (2 * num_ranks))
