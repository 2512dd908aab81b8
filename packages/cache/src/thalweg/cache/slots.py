"""The state pool: one fixed-size record per sequence with its window rings and compressor rings."""

from __future__ import annotations

from collections.abc import Iterable

import torch

from thalweg.cache._memory import allocate, fill_rows
from thalweg.cache.geometry import CacheGeometry
from thalweg.cache.layout import compute_layout
from thalweg.interfaces import ConfigError


class StateSlots:
    """`bytes`: uint8 [num_slots, slot_bytes], and typed views that share its memory. Slot 0 is for placeholder rows."""

    def __init__(self, geometry: CacheGeometry, num_slots: int, device: torch.device | str = "cpu") -> None:
        if num_slots < 1:
            raise ConfigError(f"num_slots is {num_slots}; at least 1 is needed (slot 0 serves placeholder rows)")
        self.geometry = geometry
        self.layout = compute_layout(geometry)
        self.num_slots = num_slots
        self.bytes = allocate(num_slots, self.layout.slot_bytes, device)
        self._window_offsets = {span.layer: span.offset for span in self.layout.window_spans}
        self._compressor_offsets = {span.layer: span.offset for span in self.layout.compressor_spans}

    def window(self, layer: int) -> torch.Tensor:
        """uint8 [num_slots, ring_length, 1, record_bytes]: the window ring of a run-time layer."""
        if layer not in self._window_offsets:
            raise ConfigError(f"layer is {layer}; {_list(self._window_offsets)} have a window ring")
        geometry = self.geometry
        record = geometry.window_format.record_bytes(geometry.head_dim)
        shape = (self.num_slots, geometry.ring_length, 1, record)
        return self.bytes.as_strided(shape, (self.layout.slot_bytes, record, record, 1), self._window_offsets[layer])

    def compressor(self, layer: int) -> torch.Tensor:
        """float32 (plain: float64) [num_slots, compressor_ring_length, 2, head_dim] of a pooling layer.

        Index 0 of the third dimension is the score, 1 the latent.
        """
        if layer not in self._compressor_offsets:
            raise ConfigError(f"layer is {layer}; {_list(self._compressor_offsets)} have a compressor ring")
        dtype = torch.float64 if self.geometry.plain else torch.float32
        width = self.geometry.head_dim
        return (
            self.bytes.view(-1)
            .view(dtype)
            .as_strided(
                (self.num_slots, self.geometry.compressor_ring_length, 2, width),
                (self.layout.slot_bytes // dtype.itemsize, 2 * width, width, 1),
                self._compressor_offsets[layer] // dtype.itemsize,
            )
        )

    def poison(self, slots: Iterable[int]) -> None:
        """Overwrite slots with 0xFF, which reads as NaN in every format: a test aid for freed slots."""
        fill_rows(self.bytes, slots, 0xFF)


def _list(layers: Iterable[int]) -> str:
    return "layers " + (", ".join(str(layer) for layer in layers) or "(none)")
