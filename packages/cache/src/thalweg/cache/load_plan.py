"""Load plans: which stretches of blocks and rings a prefill step copies out of the cache, in output order."""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np
from numpy.typing import ArrayLike, NDArray

from thalweg.interfaces import ConfigError

NO_SOURCE = -1


@dataclass(frozen=True, slots=True)
class LoadPlan:
    """The segments of one gathered tensor."""

    segments: NDArray[np.int32]
    """[m, 4] (source block or slot, -1 = zeros, begin, end, destination): copy entries begin..end-1 to destination.."""
    num_rows: int
    """Rows that the segments fill, without gaps."""


class LoadPlanBuilder:
    """Appends stretches in output order. `unit` is the number of entries in one block (B // r) or ring (R)."""

    def __init__(self, unit: int) -> None:
        if unit < 1:
            raise ConfigError(f"unit is {unit}; a block or ring has at least 1 entry")
        self._unit = unit
        self._pieces: list[NDArray[np.int64]] = []
        self._num_rows = 0

    @property
    def num_rows(self) -> int:
        """Rows appended so far."""
        return self._num_rows

    def zero_fill(self, count: int) -> None:
        """Append `count` rows of zeros."""
        if count < 0:
            raise ConfigError(f"count is {count}; zero or more rows can be filled")
        begins = np.arange(0, count, self._unit)
        sizes = np.minimum(count - begins, self._unit)
        self._append(np.full(sizes.size, NO_SOURCE), np.zeros(sizes.size, np.int64), sizes)

    def paged(self, table: ArrayLike, begin: int, end: int) -> None:
        """Append entries [begin, end) of a sequence whose entry e lies in block table[e // unit]."""
        blocks = np.asarray(table, np.int64)
        if not 0 <= begin <= end <= blocks.size * self._unit:
            raise ConfigError(
                f"entries [{begin}, {end}) are asked for; the {blocks.size} blocks hold [0, {blocks.size * self._unit})"
            )
        cells, begins, sizes = self._split(begin, end)
        self._append(blocks[cells], begins, sizes)

    def ring(self, slot: int, begin: int, end: int) -> None:
        """Append positions [begin, end) of a ring; position p is entry p mod unit of the slot's ring."""
        if not 0 <= begin <= end:
            raise ConfigError(f"positions [{begin}, {end}) are asked for; 0 <= begin <= end is needed")
        _, begins, sizes = self._split(begin, end)
        self._append(np.full(sizes.size, slot), begins, sizes)

    def build(self) -> LoadPlan:
        """The plan of everything appended so far."""
        pieces = np.concatenate(self._pieces) if self._pieces else np.zeros((0, 4), np.int64)
        return LoadPlan(np.ascontiguousarray(pieces, np.int32), self._num_rows)

    def _split(self, begin: int, end: int) -> tuple[NDArray[np.int64], NDArray[np.int64], NDArray[np.int64]]:
        """Block index (or round of the ring), first entry and size of each stretch of [begin, end) inside one."""
        if begin == end:
            return (np.zeros(0, np.int64),) * 3
        cells = np.arange(begin // self._unit, (end - 1) // self._unit + 1)
        begins = np.maximum(cells * self._unit, begin)
        ends = np.minimum((cells + 1) * self._unit, end)
        return cells, begins - cells * self._unit, ends - begins

    def _append(self, sources: NDArray[np.int64], begins: NDArray[np.int64], sizes: NDArray[np.int64]) -> None:
        if sizes.size == 0:
            return
        ends = np.cumsum(sizes)
        self._pieces.append(np.stack((sources, begins, begins + sizes, self._num_rows + ends - sizes), axis=1))
        self._num_rows += int(ends[-1])
