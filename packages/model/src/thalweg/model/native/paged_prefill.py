"""Attention memory of a prefill step: chunks of prompts, with history from the rings and whole streams from blocks."""

from __future__ import annotations

from collections.abc import Sequence

import torch

from thalweg.interfaces import CacheViews, InvariantError
from thalweg.kernels import BoundOps, RecordFormat
from thalweg.model.config import ModelConfig
from thalweg.model.metadata import PrefillMetadata
from thalweg.model.native.memory import IndexQueries, KeyNorm
from thalweg.model.native.paged import PagedRecords, row_parts
from thalweg.model.native.rope import RotaryRows

SCORE_ALIGNMENT = 64
"""The width of a score matrix is a multiple of this, so that its rows begin at whole sectors of memory."""


class PagedPrefillMemory(PagedRecords):
    """Keys are bfloat16 rows, decoded from records: window rows first (history, then chunks), entries behind them."""

    def __init__(
        self,
        config: ModelConfig,
        ops: BoundOps,
        views: CacheViews,
        metadata: PrefillMetadata,
        positions: torch.Tensor,
    ) -> None:
        """positions: int64 [T]"""
        super().__init__(config, ops, views, metadata)
        self._metadata = metadata
        self._num_rows = positions.shape[0]
        self._first_positions = positions[metadata.query_offsets[:-1].long()]
        num_history = metadata.state_slots.shape[0] * config.sliding_window
        self._num_window_rows = num_history + self._num_rows
        self._history_slots = ops.segments_to_slots(metadata.window_segments, num_history, views.layout.ring_length)
        self._window_indices = ops.expand_window_pivots(metadata.window_pivots, config.sliding_window)
        record = RecordFormat.MXFP8.record_bytes(config.head_dim)
        self._chunk = torch.empty(1, self._num_rows, 1, record, dtype=torch.uint8, device=positions.device)
        self._chunk_slots = torch.arange(self._num_rows, dtype=torch.int32, device=positions.device)
        self._window_keys: tuple[int, torch.Tensor] | None = None
        self._entry_slots: dict[int, torch.Tensor] = {}
        self._index_keys: dict[int, tuple[torch.Tensor, torch.Tensor]] = {}
        self._keys: dict[int, torch.Tensor] = {}
        self._selected: tuple[torch.Tensor, torch.Tensor] | None = None

    def write_window(self, layer: int, rows: torch.Tensor, norm: KeyNorm, rotary: RotaryRows) -> None:
        # History first: the chunk may overwrite the ring slots it came from.
        ops, view = self._ops, self._views.window(layer)
        history = ops.gather_records(view, self._history_slots, RecordFormat.MXFP8, torch.bfloat16)
        keys = ops.norm_rope(rows, norm.weight, norm.eps, rotary.cos, rotary.sin)
        ops.store_records(view, self._window_store_slots, keys, RecordFormat.MXFP8)
        # A chunk may be longer than its ring, and its rows are read as a later step would read them.
        ops.store_records(self._chunk, self._chunk_slots, keys, RecordFormat.MXFP8)
        chunk = ops.gather_records(self._chunk, self._chunk_slots, RecordFormat.MXFP8, torch.bfloat16)
        self._window_keys = (layer, torch.cat((history, chunk)))

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

    def visible(self, ratio: int) -> torch.Tensor:
        return self._metadata.entry_end[ratio] - self._metadata.entry_begin[ratio]

    def score_parts(self, layer: int) -> Sequence[slice]:
        return row_parts(self._num_rows, self._width(layer))

    def scores(self, layer: int, queries: IndexQueries, rows: slice) -> torch.Tensor:
        begin, end = self._range(layer, rows)
        scores: torch.Tensor = self._ops.indexer_scores_rows(
            *queries, *self._read_index_keys(layer), begin, end, self._width(layer)
        )
        return scores

    def candidate_scores(
        self, layer: int, queries: IndexQueries, blocks: torch.Tensor, block_size: int, rows: slice
    ) -> torch.Tensor:
        begin, end = self._range(layer, rows)
        scores: torch.Tensor = self._ops.candidate_scores_rows(
            *queries, *self._read_index_keys(layer), begin, end, blocks, block_size
        )
        return scores

    def attend(
        self,
        layer: int,
        kv_source: int | None,
        queries: torch.Tensor,
        selection: torch.Tensor | None,
        sink: torch.Tensor,
    ) -> torch.Tensor:
        if self._window_keys is None or self._window_keys[0] != layer:
            raise InvariantError(f"layer {layer} attends before its window keys were written")
        keys, indices = self._window_keys[1], self._window_indices
        if kv_source is not None and selection is not None:
            keys, indices = self._with_entries(kv_source, keys), self._joined_indices(kv_source, selection)
        attended: torch.Tensor = self._ops.sparse_attention(queries, keys, indices, sink, self._config.head_dim**-0.5)
        return attended

    def _with_entries(self, kv_source: int, window_keys: torch.Tensor) -> torch.Tensor:
        """Window rows, then all entries of a stream: these are decoded once per step, and only those are replaced."""
        if kv_source not in self._keys:
            view = self._views.main(kv_source)
            slots = self._slots_of_entries(self._ratios[kv_source], view.shape[1])
            entries = self._ops.gather_records(view, slots, self._main_format, torch.bfloat16)
            self._keys[kv_source] = torch.cat((window_keys, entries))
            return self._keys[kv_source]
        keys = self._keys[kv_source]
        keys[: self._num_window_rows].copy_(window_keys)
        return keys

    def _joined_indices(self, kv_source: int, selection: torch.Tensor) -> torch.Tensor:
        """int32 [T, W + k]: rows of the window, then of the selected entries; shared by layers with one selection."""
        if self._selected is None or self._selected[0] is not selection:
            begin = self._metadata.entry_begin[self._ratios[kv_source]]
            entries = torch.where(selection >= 0, selection + begin[:, None], -1)
            joined = self._ops.cat_kv_indices(self._window_indices, entries, self._num_window_rows)
            self._selected = (selection, joined)
        return self._selected[1]

    def _read_index_keys(self, layer: int) -> tuple[torch.Tensor, torch.Tensor]:
        """Codes and scales of all visible index keys; the index sources that share them read them once per step."""
        if layer not in self._index_keys:
            view = self._views.index_keys(layer)
            slots = self._slots_of_entries(self._ratios[layer], view.shape[1])
            self._index_keys[layer] = self._ops.gather_parts(view, slots, RecordFormat.MXFP4_INDEX)
        return self._index_keys[layer]

    def _range(self, layer: int, rows: slice) -> tuple[torch.Tensor, torch.Tensor]:
        ratio = self._ratios[layer]
        return self._metadata.entry_begin[ratio][rows], self._metadata.entry_end[ratio][rows]

    def _width(self, layer: int) -> int:
        return -(-self._metadata.num_compressed_rows[self._ratios[layer]] // SCORE_ALIGNMENT) * SCORE_ALIGNMENT

    def _slots_of_entries(self, ratio: int, entries_per_block: int) -> torch.Tensor:
        if ratio not in self._entry_slots:
            self._entry_slots[ratio] = self._ops.segments_to_slots(
                self._metadata.compressed_segments[ratio], self._metadata.num_compressed_rows[ratio], entries_per_block
            )
        return self._entry_slots[ratio]
