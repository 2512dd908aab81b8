"""Attention memory in the paged cache: window rings and compressor rings in state slots, streams in blocks.

Everything goes through the cache's byte formats, so a value read in the step that wrote it equals the one that any
later step reads. In `plain` mode the records are raw float64 rows.
"""

from __future__ import annotations

import torch

from thalweg.interfaces import CacheViews, ConfigError
from thalweg.kernels import RecordFormat
from thalweg.model.config import ModelConfig
from thalweg.model.memory import AttentionMemory
from thalweg.model.metadata import DecodeMetadata, PrefillMetadata
from thalweg.model.numerics import Numerics


def paged_memory(
    config: ModelConfig,
    numerics: Numerics,
    views: CacheViews,
    metadata: PrefillMetadata | DecodeMetadata,
    positions: torch.Tensor,
) -> AttentionMemory:
    """The memory of one step over the cache pools; writes go to the pools at once.

    positions: int64 [T] of the step's rows. Raises ConfigError for pools whose records do not fit the mode.
    """
    if isinstance(metadata, PrefillMetadata):
        return PagedPrefillMemory(config, numerics, views, metadata, positions)
    return PagedDecodeMemory(config, numerics, views, metadata)


def window_format(config: ModelConfig, numerics: Numerics, views: CacheViews) -> RecordFormat:
    """The format of window records. Raises ConfigError for pools whose records do not fit the mode."""
    record_format = RecordFormat.MXFP8 if numerics.is_quant else RecordFormat.FLOAT64
    found, wanted = views.window(0).shape[-1], record_format.record_bytes(config.head_dim)
    if found != wanted:
        raise ConfigError(
            f"window records of the cache have {found} bytes; {numerics.mode.value} mode with head_dim "
            f"{config.head_dim} needs {wanted}"
        )
    return record_format


class _PagedMemory:
    """What both kinds of step share: record formats, and stores into rings and blocks."""

    def __init__(
        self,
        config: ModelConfig,
        numerics: Numerics,
        views: CacheViews,
        metadata: PrefillMetadata | DecodeMetadata,
    ) -> None:
        self._ratios = config.compress_ratios
        self._numerics = numerics
        self._ops = numerics.ops
        self._views = views
        self._window_size = config.sliding_window
        self._compressed_positions = metadata.compressed_positions
        self._compressed_store_slots = metadata.compressed_store_slots
        self._window_store_slots = metadata.window_store_slots
        self._index_keys: dict[int, torch.Tensor] = {}
        """De-quantised keys by source; the index sources that share them read them once per step."""
        self._window_format = window_format(config, numerics, views)
        if numerics.is_quant:
            self._main_format = RecordFormat.FP4_MAIN if config.use_fp4_sparse_kv else RecordFormat.MXFP8
            self._index_format = RecordFormat.MXFP4_INDEX
        else:
            self._main_format = self._index_format = RecordFormat.FLOAT64

    def entry_positions(self, ratio: int) -> torch.Tensor:
        return self._compressed_positions[ratio].long()

    def append_main(self, layer: int, rows: torch.Tensor) -> None:
        slots = self._compressed_store_slots[self._ratios[layer]]
        self._ops.store_records(self._views.main(layer), slots, rows, self._main_format)

    def append_index_keys(self, layer: int, rows: torch.Tensor) -> None:
        slots = self._compressed_store_slots[self._ratios[layer]]
        self._ops.store_records(self._views.index_keys(layer), slots, rows, self._index_format)
        self._index_keys.pop(layer, None)

    def _store_window(self, view: torch.Tensor, rows: torch.Tensor) -> None:
        self._ops.store_records(view, self._window_store_slots, rows, self._window_format)

    def _read_index_keys(self, layer: int, slots: torch.Tensor) -> torch.Tensor:
        if layer not in self._index_keys:
            self._index_keys[layer] = self._gather(self._views.index_keys(layer), slots, self._index_format)
        return self._index_keys[layer]

    def _gather(self, view: torch.Tensor, slots: torch.Tensor, record_format: RecordFormat) -> torch.Tensor:
        rows: torch.Tensor = self._ops.gather_records(view, slots, record_format, self._numerics.dtype)
        return rows


class PagedPrefillMemory(_PagedMemory):
    """Chunks of prompts: history comes from the rings, the visible part of every stream is read as a whole."""

    def __init__(
        self,
        config: ModelConfig,
        numerics: Numerics,
        views: CacheViews,
        metadata: PrefillMetadata,
        positions: torch.Tensor,
    ) -> None:
        super().__init__(config, numerics, views, metadata)
        self._metadata = metadata
        self._first_positions = positions[metadata.query_offsets[:-1].long()]
        num_sequences = metadata.state_slots.shape[0]
        self._history_slots = self._ops.segments_to_slots(
            metadata.window_segments, num_sequences * self._window_size, views.layout.ring_length
        )
        self._window_indices = self._ops.expand_window_pivots(metadata.window_pivots, self._window_size).long()
        self._entry_slots: dict[int, torch.Tensor] = {}
        self._main: dict[int, torch.Tensor] = {}

    def window(self, layer: int, rows: torch.Tensor) -> tuple[torch.Tensor, torch.Tensor]:
        # History first: the chunk may overwrite the ring slots it came from.
        view = self._views.window(layer)
        history = self._gather(view, self._history_slots, self._window_format)
        self._store_window(view, rows)
        return torch.cat([history, self._numerics.mxfp8(rows)]), self._window_indices

    def pool(self, layer: int, score: torch.Tensor, latent: torch.Tensor) -> torch.Tensor:
        metadata, ratio = self._metadata, self._ratios[layer]
        pooled: torch.Tensor = self._ops.pool_prefill(
            score,
            latent,
            self._views.compressor(layer),
            metadata.state_slots,
            metadata.query_offsets,
            self._first_positions,
            metadata.compressed_offsets[ratio],
            ratio,
            num_entries=metadata.compressed_positions[ratio].shape[0],
        )
        return pooled

    def index_keys(self, layer: int) -> tuple[torch.Tensor, torch.Tensor, torch.Tensor]:
        metadata, ratio = self._metadata, self._ratios[layer]
        slots = self._slots_of_entries(ratio, self._views.index_keys(layer).shape[1])
        keys = self._read_index_keys(layer, slots)
        return keys, metadata.entry_begin[ratio].long(), metadata.entry_end[ratio].long()

    def selected_main(self, layer: int, selection: torch.Tensor) -> tuple[torch.Tensor, torch.Tensor]:
        ratio = self._ratios[layer]
        if layer not in self._main:
            view = self._views.main(layer)
            self._main[layer] = self._gather(view, self._slots_of_entries(ratio, view.shape[1]), self._main_format)
        begin = self._metadata.entry_begin[ratio].long()
        return self._main[layer], torch.where(selection >= 0, selection.long() + begin[:, None], -1)

    def _slots_of_entries(self, ratio: int, entries_per_block: int) -> torch.Tensor:
        if ratio not in self._entry_slots:
            self._entry_slots[ratio] = self._ops.segments_to_slots(
                self._metadata.compressed_segments[ratio], self._metadata.num_compressed_rows[ratio], entries_per_block
            )
        return self._entry_slots[ratio]


class PagedDecodeMemory(_PagedMemory):
    """Single query rows: each stores its position, then reads its own window and only the entries it selected."""

    def __init__(self, config: ModelConfig, numerics: Numerics, views: CacheViews, metadata: DecodeMetadata) -> None:
        super().__init__(config, numerics, views, metadata)
        self._metadata = metadata
        self._window_slots = self._ops.expand_window_reads(
            metadata.window_reads, self._window_size, views.layout.ring_length
        )
        self._window_indices = _own_rows(self._window_slots)
        self._key_slots: dict[int, torch.Tensor] = {}
        self._key_ends: dict[int, torch.Tensor] = {}
        self._selected: tuple[int, torch.Tensor, torch.Tensor, torch.Tensor] | None = None

    def window(self, layer: int, rows: torch.Tensor) -> tuple[torch.Tensor, torch.Tensor]:
        view = self._views.window(layer)
        self._store_window(view, rows)
        keys = self._gather(view, self._window_slots, self._window_format)
        return keys.flatten(0, 1), self._window_indices

    def pool(self, layer: int, score: torch.Tensor, latent: torch.Tensor) -> torch.Tensor:
        metadata = self._metadata
        pooled: torch.Tensor = self._ops.pool_decode(
            score,
            latent,
            self._views.compressor(layer),
            metadata.state_slots,
            metadata.context_lengths,
            self._ratios[layer],
        )
        return pooled

    def index_keys(self, layer: int) -> tuple[torch.Tensor, torch.Tensor, torch.Tensor]:
        ratio = self._ratios[layer]
        if ratio not in self._key_slots:
            entries_per_block = self._views.index_keys(layer).shape[1]
            self._key_slots[ratio], self._key_ends[ratio] = self._visible_slots(ratio, entries_per_block)
        end = self._key_ends[ratio]
        keys = self._read_index_keys(layer, self._key_slots[ratio])
        return keys, end - self._metadata.visible_entries[ratio].long(), end

    def selected_main(self, layer: int, selection: torch.Tensor) -> tuple[torch.Tensor, torch.Tensor]:
        # Layers that reuse a selection read the same entries of the same stream.
        if self._selected is None or self._selected[0] != layer or self._selected[1] is not selection:
            metadata, view = self._metadata, self._views.main(layer)
            visible = metadata.visible_entries[self._ratios[layer]]
            slots = self._ops.topk_to_slots(selection, visible, metadata.block_tables, view.shape[1])
            keys = self._gather(view, slots, self._main_format).flatten(0, 1)
            self._selected = (layer, selection, keys, _own_rows(slots))
        return self._selected[2], self._selected[3]

    def _visible_slots(self, ratio: int, entries_per_block: int) -> tuple[torch.Tensor, torch.Tensor]:
        """Flat slots of every row's visible entries, row after row, and the end of each row's run."""
        visible = self._metadata.visible_entries[ratio].long()
        end = visible.cumsum(0)
        row = torch.repeat_interleave(torch.arange(visible.shape[0], device=visible.device), visible)
        entry = torch.arange(row.shape[0], device=visible.device) - (end - visible)[row]
        block = self._metadata.block_tables[row, entry // entries_per_block].long()
        return block * entries_per_block + entry % entries_per_block, end


def _own_rows(slots: torch.Tensor) -> torch.Tensor:
    """Indices into the rows gathered for slots [T, K], -1 where there was no slot."""
    rows = torch.arange(slots.numel(), device=slots.device).view(slots.shape)
    return torch.where(slots >= 0, rows, -1)
