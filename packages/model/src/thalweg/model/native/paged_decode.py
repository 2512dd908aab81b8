"""Attention memory of a decode step: every row stores its position and reads windows and entries where they lie."""

from __future__ import annotations

from collections.abc import Sequence

import torch

from thalweg.interfaces import CacheViews
from thalweg.kernels import BoundOps, RecordFormat
from thalweg.model.config import ModelConfig
from thalweg.model.metadata import DecodeMetadata
from thalweg.model.native.memory import IndexQueries, KeyNorm
from thalweg.model.native.paged import PagedRecords, row_parts
from thalweg.model.native.rope import RotaryRows


class PagedDecodeMemory(PagedRecords):
    """All shapes follow from those of the metadata: a graph can hold the step."""

    def __init__(self, config: ModelConfig, ops: BoundOps, views: CacheViews, metadata: DecodeMetadata) -> None:
        super().__init__(config, ops, views, metadata)
        self._metadata = metadata
        self._window_slots = ops.expand_window_reads(
            metadata.window_reads, config.sliding_window, views.layout.ring_length
        )
        self._selected: tuple[int, torch.Tensor, torch.Tensor] | None = None

    def write_window(self, layer: int, rows: torch.Tensor, norm: KeyNorm, rotary: RotaryRows) -> None:
        self._ops.norm_rope_store(
            rows,
            norm.weight,
            norm.eps,
            rotary.cos,
            rotary.sin,
            self._views.window(layer),
            self._window_store_slots,
            RecordFormat.MXFP8,
        )

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

    def visible(self, ratio: int) -> torch.Tensor:
        return self._metadata.visible_entries[ratio]

    def score_parts(self, layer: int) -> Sequence[slice]:
        return row_parts(self._metadata.block_tables.shape[0], self._width(layer))

    def scores(self, layer: int, queries: IndexQueries, rows: slice) -> torch.Tensor:
        view, metadata = self._views.index_keys(layer), self._metadata
        visible = metadata.visible_entries[self._ratios[layer]][rows]
        scores: torch.Tensor = self._ops.paged_indexer_scores(
            *queries, view, metadata.block_tables[rows], visible, self._width(layer)
        )
        return scores

    def candidate_scores(
        self, layer: int, queries: IndexQueries, blocks: torch.Tensor, block_size: int, rows: slice
    ) -> torch.Tensor:
        view, metadata = self._views.index_keys(layer), self._metadata
        visible = metadata.visible_entries[self._ratios[layer]][rows]
        scores: torch.Tensor = self._ops.paged_candidate_scores(
            *queries, view, metadata.block_tables[rows], visible, blocks, block_size
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
        main, slots = None, None
        if kv_source is not None and selection is not None:
            main, slots = self._views.main(kv_source), self._slots(kv_source, selection)
        attended: torch.Tensor = self._ops.paged_sparse_attention(
            queries,
            self._views.window(layer),
            self._window_slots,
            main,
            slots,
            self._main_format,
            sink,
            self._config.head_dim**-0.5,
        )
        return attended

    def _width(self, layer: int) -> int:
        """Columns of a score matrix: the entries that a whole block table names."""
        return self._metadata.block_tables.shape[1] * int(self._views.index_keys(layer).shape[1])

    def _slots(self, kv_source: int, selection: torch.Tensor) -> torch.Tensor:
        """Flat slots int32 [T, k] of the selected entries; layers that reuse a selection share them."""
        if self._selected is None or self._selected[0] != kv_source or self._selected[1] is not selection:
            metadata, entries = self._metadata, self._views.main(kv_source).shape[1]
            visible = metadata.visible_entries[self._ratios[kv_source]]
            slots = self._ops.topk_to_slots(selection, visible, metadata.block_tables, entries)
            self._selected = (kv_source, selection, slots)
        return self._selected[2]
