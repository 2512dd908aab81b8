"""The rotary rows of one forward pass, gathered once for each kind of layer."""

from __future__ import annotations

from typing import Generic, Protocol, TypeVar

import torch

Rows = TypeVar("Rows")
_Rows_co = TypeVar("_Rows_co", covariant=True)


class Tables(Protocol[_Rows_co]):
    """Cosines and sines by position."""

    def at(self, positions: torch.Tensor, ratio: int) -> _Rows_co:
        """Those of positions [n], for layers of this compress ratio."""


class EntryPositions(Protocol):
    """A memory that knows which entries a pass adds."""

    def entry_positions(self, ratio: int) -> torch.Tensor:
        """The positions of the entries that are added to streams of this ratio."""


class PassRotary(Generic[Rows]):
    """What the state of a pass has of rotary tables. All layers of one ratio rotate the same positions."""

    __slots__ = ("_entry_rotary", "_memory", "_positions", "_row_rotary", "_tables")

    def __init__(self, tables: Tables[Rows], positions: torch.Tensor, memory: EntryPositions) -> None:
        """positions: of the batch's own rows."""
        self._tables = tables
        self.begin_rotary(positions, memory)

    def begin_rotary(self, positions: torch.Tensor, memory: EntryPositions) -> None:
        """Go on with other rows."""
        self._positions = positions
        self._memory = memory
        self._row_rotary: dict[bool, Rows] = {}
        self._entry_rotary: dict[int, Rows] = {}

    def row_rotary(self, ratio: int) -> Rows:
        """Of the batch's own positions, for layers of this ratio."""
        kind = ratio > 0
        if kind not in self._row_rotary:
            self._row_rotary[kind] = self._tables.at(self._positions, ratio)
        return self._row_rotary[kind]

    def entry_rotary(self, ratio: int) -> Rows:
        """Of the entries that this pass adds to streams of this ratio."""
        if ratio not in self._entry_rotary:
            self._entry_rotary[ratio] = self._tables.at(self._memory.entry_positions(ratio), ratio)
        return self._entry_rotary[ratio]
