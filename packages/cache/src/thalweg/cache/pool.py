"""The paged pool, and both pools together as the views that a forward pass works on."""

from __future__ import annotations

from collections.abc import Iterable

import torch

from thalweg.cache._memory import allocate, fill_rows
from thalweg.cache.geometry import CacheGeometry
from thalweg.cache.layout import BlockPart, block_parts, compute_layout
from thalweg.cache.slots import StateSlots
from thalweg.interfaces import CacheLayout, ConfigError
from thalweg.kernels import RecordFormat


class PagedBlocks:
    """`bytes`: uint8 [num_blocks, block_bytes], and typed views that share its memory. Block 0 is never handed out."""

    def __init__(self, geometry: CacheGeometry, num_blocks: int, device: torch.device | str = "cpu") -> None:
        if num_blocks < 1:
            raise ConfigError(f"num_blocks is {num_blocks}; at least 1 is needed (block 0 means none)")
        self.geometry = geometry
        self.layout = compute_layout(geometry)
        self.num_blocks = num_blocks
        self.bytes = allocate(num_blocks, self.layout.block_bytes, device)
        self._parts = {part.layer: part for part in block_parts(geometry)}

    def main(self, layer: int) -> torch.Tensor:
        """uint8 [num_blocks, entries, 1, record_bytes]: the compressed KV that a layer reads (its source's)."""
        part = self._part(self.geometry.kv_source(layer), layer)
        return self._view(part.main_offset, part.entries, self.geometry.main_format, self.geometry.head_dim)

    def index_keys(self, layer: int) -> torch.Tensor:
        """uint8 [num_blocks, entries, 1, record_bytes]: the index keys that a layer scores (its source's)."""
        part = self._part(self.geometry.index_key_source(layer), layer)
        return self._view(part.index_offset, part.entries, self.geometry.index_format, self.geometry.index_head_dim)

    def poison(self, blocks: Iterable[int]) -> None:
        """Overwrite blocks with 0xFF, which reads as NaN in every format: a test aid for freed blocks."""
        fill_rows(self.bytes, blocks, 0xFF)

    def _part(self, source: int | None, layer: int) -> BlockPart:
        if source is None:
            raise ConfigError(f"layer is {layer}, which reads no compressed stream; only layers with ratio 1 or 2 do")
        return self._parts[source]

    def _view(self, offset: int | None, entries: int, record_format: RecordFormat, width: int) -> torch.Tensor:
        assert offset is not None, "a source has the part it is a source of"
        record = record_format.record_bytes(width)
        return self.bytes.as_strided(
            (self.num_blocks, entries, 1, record), (self.layout.block_bytes, record, record, 1), offset
        )


class CachePools:
    """Both pools of one rank; satisfies `interfaces.CacheViews`.

    Memory comes zeroed. A block or slot that is handed on keeps the bytes of its last holder: readers rely on index
    lists that never name an entry before it was written. With `poison_freed`, `freed` makes a violation visible as NaN.
    """

    def __init__(
        self,
        geometry: CacheGeometry,
        num_blocks: int,
        num_state_slots: int,
        device: torch.device | str = "cpu",
        *,
        poison_freed: bool = False,
    ) -> None:
        self.geometry = geometry
        self._blocks = PagedBlocks(geometry, num_blocks, device)
        self._slots = StateSlots(geometry, num_state_slots, device)
        self._poison_freed = poison_freed

    @property
    def layout(self) -> CacheLayout:
        """The layout of both pools."""
        return self._blocks.layout

    @property
    def blocks(self) -> torch.Tensor:
        """uint8 [num_blocks, block_bytes]: the raw paged pool."""
        return self._blocks.bytes

    @property
    def states(self) -> torch.Tensor:
        """uint8 [num_state_slots, slot_bytes]: the raw state pool."""
        return self._slots.bytes

    @property
    def window_format(self) -> RecordFormat:
        """Format of the records in `window`."""
        return self.geometry.window_format

    @property
    def main_format(self) -> RecordFormat:
        """Format of the records in `main`."""
        return self.geometry.main_format

    @property
    def index_format(self) -> RecordFormat:
        """Format of the records in `index_keys`."""
        return self.geometry.index_format

    def window(self, layer: int) -> torch.Tensor:
        """uint8 [num_state_slots, ring_length, 1, record_bytes]: the window ring of a run-time layer."""
        return self._slots.window(layer)

    def main(self, layer: int) -> torch.Tensor:
        """uint8 [num_blocks, entries, 1, record_bytes]: the compressed KV that a layer reads (its source's)."""
        return self._blocks.main(layer)

    def index_keys(self, layer: int) -> torch.Tensor:
        """uint8 [num_blocks, entries, 1, record_bytes]: the index keys that a layer scores (its source's)."""
        return self._blocks.index_keys(layer)

    def compressor(self, layer: int) -> torch.Tensor:
        """float32 (plain: float64) [num_state_slots, compressor_ring_length, 2, head_dim] of a pooling layer."""
        return self._slots.compressor(layer)

    def freed(self, blocks: Iterable[int] = (), slots: Iterable[int] = ()) -> None:
        """Tell the pools that nobody holds these blocks and slots any more; does nothing unless `poison_freed`."""
        if self._poison_freed:
            self._blocks.poison(blocks)
            self._slots.poison(slots)
