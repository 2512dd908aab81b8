"""Attention memory of a draft block: its keys go to the window rings, where the main keys of the past already are."""

from __future__ import annotations

from typing import Protocol

import torch

from thalweg.interfaces import CacheViews
from thalweg.kernels import DraftIndices, RecordFormat
from thalweg.model.numerics import Numerics


class WindowMemory(Protocol):
    """The part of an `AttentionMemory` that draft layers ask for: they have no compressed stream."""

    def window(self, layer: int, rows: torch.Tensor) -> tuple[torch.Tensor, torch.Tensor]:
        """As of `AttentionMemory`."""


class BlockMemory:
    """Windows of N blocks of G rows. All rows of a block see one list of K slots, later rows of the block included."""

    def __init__(
        self,
        views: CacheViews,
        indices: DraftIndices,
        record_format: RecordFormat,
        numerics: Numerics,
    ) -> None:
        """indices: of the op `draft_metadata`."""
        self._views = views
        self._slots = indices.slots
        self._key_slots = indices.key_slots
        self._format = record_format
        self._numerics = numerics
        own_rows = torch.arange(self._key_slots.numel(), device=self._key_slots.device).view(self._key_slots.shape)
        self._indices = torch.where(self._key_slots >= 0, own_rows, -1)

    def window(self, layer: int, rows: torch.Tensor) -> tuple[torch.Tensor, torch.Tensor]:
        """Store the keys [N*G, D] of a layer; the keys [N*K, D] of all blocks and int64 [N, K] indices into them."""
        n, view = self._numerics, self._views.window(layer)
        n.ops.store_records(view, self._slots, rows, self._format)
        keys = n.ops.gather_records(view, self._key_slots, self._format, n.dtype)
        return keys.flatten(0, 1), self._indices
