"""Which bytes of a sequence's cache a later step may read: everything else may hold anything."""

from __future__ import annotations

from collections.abc import Iterable
from functools import lru_cache

import torch

from thalweg.cache import CacheGeometry
from thalweg.cache.layout import BlockPart, block_parts, compute_layout
from thalweg.kernels import RecordFormat

Masks = tuple[torch.Tensor, torch.Tensor]
"""bool [slot_bytes] and bool [blocks of a sequence, block_bytes]"""


class ReadableBytes:
    """Masks over the state slot and the blocks of one sequence, by the number of tokens in its cache.

    Written from the byte layout alone; it shares no index arithmetic with what it checks.
    """

    def __init__(self, geometry: CacheGeometry, num_blocks: int) -> None:
        self._geometry = geometry
        self._layout = compute_layout(geometry)
        self._parts = block_parts(geometry)
        self._num_blocks = num_blocks
        self.kept = lru_cache(None)(self._kept)
        self.next = lru_cache(None)(self._next)

    def _kept(self, cached: int) -> Masks:
        """What rejecting drafts must leave intact: a whole window up to the last position, the open pair, entries."""
        return self._readable(cached, range(max(0, cached - self._geometry.window_size), cached))

    def _next(self, cached: int) -> Masks:
        """What the next step may read: it brings the last position of its windows itself."""
        return self._readable(cached, self._older(cached))

    def written(self, cached: int, queries: int) -> Masks:
        """What a decode step of so many rows may write."""
        slot, blocks = self._nothing()
        positions = range(cached, cached + queries)
        for span in self._layout.window_spans:
            self._mark_window(slot, span.layer, positions)
        for span in self._layout.compressor_spans:
            self._mark_open_rows(slot, span.layer, positions)
        for part in self._parts:
            ratio = self._geometry.compress_ratios[part.layer]
            self._mark_stream(blocks, part, range(cached // ratio, (cached + queries) // ratio))
        return slot, blocks

    def drafted(self, cached: int) -> Masks:
        """What the drafter may write with so many tokens in the cache: its own rings behind the last position."""
        slot, blocks = self._nothing()
        for span in self._layout.window_spans:
            if span.layer >= self._geometry.num_layers:
                self._mark_window(slot, span.layer, range(cached, cached + self._geometry.draft_length))
        return slot, blocks

    def parts_of_next(self, cached: int) -> dict[str, Masks]:
        """What the next step of the backbone reads, by name: single records of a slot, whole streams of the blocks."""
        parts = self._window_records(range(self._geometry.num_layers), self._older(cached))
        for layer in self._geometry.pooling_layers:
            for position in self._open_group(layer, cached):
                mask = parts[f"open row {layer} at {position}"] = self._nothing()
                self._mark_open_rows(mask[0], layer, [position])
        for part in self._parts:
            entries = range(cached // self._geometry.compress_ratios[part.layer])
            self._mark_main(parts.setdefault(f"main {part.layer}", self._nothing())[1], part, entries)
            self._mark_index_keys(parts.setdefault(f"index keys {part.layer}", self._nothing())[1], part, entries)
        return parts

    def parts_of_drafts(self, cached: int) -> dict[str, Masks]:
        """What the drafter reads, by name: single records of its window rings."""
        layers = range(self._geometry.num_layers, self._geometry.num_run_time_layers)
        return self._window_records(layers, range(max(0, cached - self._geometry.window_size), cached))

    def _window_records(self, layers: Iterable[int], positions: Iterable[int]) -> dict[str, Masks]:
        parts: dict[str, Masks] = {}
        for layer in layers:
            for position in positions:
                mask = parts[f"window {layer} at {position}"] = self._nothing()
                self._mark_window(mask[0], layer, [position])
        return parts

    def _readable(self, cached: int, window: range) -> Masks:
        slot, blocks = self._nothing()
        for span in self._layout.window_spans:
            self._mark_window(slot, span.layer, window)
        for span in self._layout.compressor_spans:
            self._mark_open_rows(slot, span.layer, self._open_group(span.layer, cached))
        for part in self._parts:
            self._mark_stream(blocks, part, range(cached // self._geometry.compress_ratios[part.layer]))
        return slot, blocks

    def _nothing(self) -> Masks:
        return (
            torch.zeros(self._layout.slot_bytes, dtype=torch.bool),
            torch.zeros(self._num_blocks, self._layout.block_bytes, dtype=torch.bool),
        )

    def _older(self, cached: int) -> range:
        return range(max(0, cached - self._geometry.window_size + 1), cached)

    def _open_group(self, layer: int, cached: int) -> range:
        ratio = self._geometry.compress_ratios[layer]
        return range(cached // ratio * ratio, cached)

    def _mark_window(self, slot: torch.Tensor, layer: int, positions: Iterable[int]) -> None:
        (offset,) = (span.offset for span in self._layout.window_spans if span.layer == layer)
        record = self._geometry.window_format.record_bytes(self._geometry.head_dim)
        for position in positions:
            start = offset + position % self._geometry.ring_length * record
            slot[start : start + record] = True

    def _mark_open_rows(self, slot: torch.Tensor, layer: int, positions: Iterable[int]) -> None:
        (span,) = (span for span in self._layout.compressor_spans if span.layer == layer)
        ring = self._geometry.compressor_ring_length
        row = span.length // ring
        for position in positions:
            start = span.offset + position % ring * row
            slot[start : start + row] = True

    def _mark_stream(self, blocks: torch.Tensor, part: BlockPart, entries: Iterable[int]) -> None:
        self._mark_main(blocks, part, entries)
        self._mark_index_keys(blocks, part, entries)

    def _mark_main(self, blocks: torch.Tensor, part: BlockPart, entries: Iterable[int]) -> None:
        assert part.main_offset is not None
        record = self._geometry.main_format.record_bytes(self._geometry.head_dim)
        for entry in entries:
            start = part.main_offset + entry % part.entries * record
            blocks[entry // part.entries, start : start + record] = True

    def _mark_index_keys(self, blocks: torch.Tensor, part: BlockPart, entries: Iterable[int]) -> None:
        """Quantised index keys of a block come first, then all of their scales."""
        assert part.index_offset is not None
        record = self._geometry.index_format.record_bytes(self._geometry.index_head_dim)
        scales = self._geometry.index_head_dim // 32 if self._geometry.index_format is RecordFormat.MXFP4_INDEX else 0
        data = record - scales
        for entry in entries:
            block, place = blocks[entry // part.entries], entry % part.entries
            for offset, width in ((0, data), (part.entries * data, scales)):
                start = part.index_offset + offset + place * width
                block[start : start + width] = True
