"""Attention memory in the paged cache: what both kinds of step share, stores into rings and blocks."""

from __future__ import annotations

from collections.abc import Sequence

import torch

from thalweg.interfaces import CacheViews
from thalweg.kernels import BoundOps, RecordFormat
from thalweg.model.config import ModelConfig
from thalweg.model.metadata import DecodeMetadata, PrefillMetadata
from thalweg.model.native.memory import KeyNorm
from thalweg.model.native.rope import RotaryRows

SCORE_BYTES = 512 << 20
"""Most that the scores of one call take; more rows are scored in parts."""


class PagedRecords:
    """Stores of one step. A record that is written is read as bytes by the same step and by all later ones."""

    def __init__(
        self, config: ModelConfig, ops: BoundOps, views: CacheViews, metadata: PrefillMetadata | DecodeMetadata
    ) -> None:
        self._config = config
        self._ratios = config.compress_ratios
        self._ops = ops
        self._views = views
        self._compressed_positions = metadata.compressed_positions
        self._compressed_store_slots = metadata.compressed_store_slots
        self._window_store_slots = metadata.window_store_slots
        self._main_format = RecordFormat.FP4_MAIN if config.use_fp4_sparse_kv else RecordFormat.MXFP8

    def entry_positions(self, ratio: int) -> torch.Tensor:
        return self._compressed_positions[ratio]

    def write_main(self, layer: int, rows: torch.Tensor, norm: KeyNorm, rotary: RotaryRows) -> torch.Tensor:
        slots = self._compressed_store_slots[self._ratios[layer]]
        latents: torch.Tensor = self._ops.norm_rope_store(
            rows,
            norm.weight,
            norm.eps,
            rotary.cos,
            rotary.sin,
            self._views.main(layer),
            slots,
            self._main_format,
        )
        return latents

    def write_index_keys(self, layer: int, rows: torch.Tensor, norm: KeyNorm, rotary: RotaryRows) -> None:
        slots = self._compressed_store_slots[self._ratios[layer]]
        self._ops.norm_rope_store(
            rows,
            norm.weight,
            norm.eps,
            rotary.cos,
            rotary.sin,
            self._views.index_keys(layer),
            slots,
            RecordFormat.MXFP4_INDEX,
        )


def row_parts(num_rows: int, width: int) -> Sequence[slice]:
    """Rows cut so that bfloat16 scores [n, width] of a part stay within SCORE_BYTES."""
    size = max(1, SCORE_BYTES // (2 * max(width, 1)))
    if num_rows <= size:
        return (slice(0, num_rows),)
    return tuple(slice(begin, min(begin + size, num_rows)) for begin in range(0, num_rows, size))
