"""Attention memory of a draft block: its keys go to the window rings, where the main keys of the past already are."""

from __future__ import annotations

import torch

from thalweg.interfaces import CacheViews
from thalweg.kernels import BoundOps, DraftIndices, RecordFormat
from thalweg.model.config import ModelConfig
from thalweg.model.native.memory import KeyNorm
from thalweg.model.native.rope import RotaryRows


class BlockMemory:
    """Windows of N blocks of G rows. All rows of a block see one list of K slots, later rows of the block included."""

    def __init__(self, config: ModelConfig, ops: BoundOps, views: CacheViews, indices: DraftIndices) -> None:
        """indices: of the op `draft_metadata`."""
        self._config = config
        self._ops = ops
        self._views = views
        self._indices = indices

    def write_window(self, layer: int, rows: torch.Tensor, norm: KeyNorm, rotary: RotaryRows) -> None:
        """Store the keys [N*G, D] of a layer."""
        view, slots = self._views.window(layer), self._indices.slots
        self._ops.norm_rope_store(rows, norm.weight, norm.eps, rotary.cos, rotary.sin, view, slots, RecordFormat.MXFP8)

    def attend(
        self,
        layer: int,
        kv_source: int | None,
        queries: torch.Tensor,
        selection: torch.Tensor | None,
        sink: torch.Tensor,
    ) -> torch.Tensor:
        """Attention output bfloat16 [N*G, H, D] over the windows; draft layers read nothing else."""
        attended: torch.Tensor = self._ops.paged_sparse_attention(
            queries,
            self._views.window(layer),
            self._indices.key_slots,
            None,
            None,
            RecordFormat.MXFP8,
            sink,
            self._config.head_dim**-0.5,
        )
        return attended
