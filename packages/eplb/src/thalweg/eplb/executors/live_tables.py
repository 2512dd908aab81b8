"""The tables that gate and dispatch read while experts move."""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING

import torch

if TYPE_CHECKING:
    from thalweg.eplb.placement import Placement


@dataclass(frozen=True, slots=True)
class LiveTables:
    """The tables of a placement, int32 on any device; overwritten in place, so recorded graphs see it.

    Of all layers, or without the first dimension of one.
    """

    logical_of_physical: torch.Tensor
    """[layers, slots]"""
    physical_of_logical: torch.Tensor
    """[layers, experts, slots - experts + 1], padded with -1"""
    num_copies: torch.Tensor
    """[layers, experts]"""

    @classmethod
    def of(cls, placement: Placement, device: torch.device | str = "cpu") -> LiveTables:
        tables = placement.logical_of_physical, placement.physical_of_logical, placement.copies()
        return cls(*(torch.tensor(table, device=device) for table in tables))

    def room_for_layer(self) -> LiveTables:
        """Uninitialised tables of one layer, on the same device."""
        return LiveTables(*(torch.empty_like(table[0]) for table in self._all))

    def layer(self, layer: int) -> LiveTables:
        """The rows of one layer; writing to them changes these tables."""
        return LiveTables(*(table[layer] for table in self._all))

    def copy_from(self, other: LiveTables) -> None:
        """Overwrite these tables with others of the same shapes."""
        for ours, theirs in zip(self._all, other._all, strict=True):
            ours.copy_(theirs)

    @property
    def _all(self) -> tuple[torch.Tensor, torch.Tensor, torch.Tensor]:
        return self.logical_of_physical, self.physical_of_logical, self.num_copies
