"""Attention memory for many sequences that grow by one token at a time, all of them at the same position."""

from __future__ import annotations

from collections.abc import Callable

import torch
from torch import Tensor

from thalweg.model import ModelConfig, Numerics


class LockstepMemory:
    """Keys of n sequences of up to L tokens in tensors of that size; a pass has one row per sequence.

    Satisfies `thalweg.model.AttentionMemory`. Every pass does the same work, whatever its position: an entry is written
    before its group is complete, and again when it is, and nobody may see it before.
    """

    def __init__(self, config: ModelConfig, count: int, length: int, numerics: Numerics, device: torch.device) -> None:
        """count: n; length: L."""
        self.position = torch.zeros(1, dtype=torch.int64, device=device)
        """int64 [1] of the pass; whoever runs passes moves it on."""
        self._config = config
        self._numerics = numerics
        self._count = count
        self._length = length
        self._first = torch.arange(count, device=device)
        self._stores: dict[tuple[str, int], Tensor] = {}

    def window(self, layer: int, rows: Tensor) -> tuple[Tensor, Tensor]:
        keys = self._store("window", layer, self._length, rows)
        keys.index_copy_(1, self.position, self._numerics.mxfp8(rows).unsqueeze(1))
        width = self._config.sliding_window
        visible = (self.position + 1).clamp(max=width)
        places = torch.arange(width, device=rows.device)
        oldest = self._first[:, None] * self._length + self.position + 1 - visible
        return keys.flatten(0, 1), torch.where(places < visible, oldest + places, -1)

    def entry_positions(self, ratio: int) -> Tensor:
        return (self.position // ratio * ratio).expand(self._count)

    def pool(self, layer: int, score: Tensor, latent: Tensor) -> Tensor:
        ratio = self._config.compress_ratios[layer]
        scores, latents = (
            self._store(kind, layer, ratio, rows).index_copy_(1, self.position % ratio, rows.unsqueeze(1))
            for kind, rows in (("score", score), ("latent", latent))
        )
        pooled: Tensor = self._numerics.ops.pool_groups(scores, latents)
        return pooled

    def append_main(self, layer: int, rows: Tensor) -> None:
        n = self._numerics
        self._append("main", layer, rows, n.fp4_main if self._config.use_fp4_sparse_kv else n.mxfp8)

    def append_index_keys(self, layer: int, rows: Tensor) -> None:
        self._append("index", layer, rows, self._numerics.mxfp4)

    def index_keys(self, layer: int) -> tuple[Tensor, Tensor, Tensor]:
        keys = self._stores["index", layer]
        begin = self._first * keys.shape[1]
        return keys.flatten(0, 1), begin, begin + (self.position + 1) // self._config.compress_ratios[layer]

    def selected_main(self, layer: int, selection: Tensor) -> tuple[Tensor, Tensor]:
        entries = self._stores["main", layer]
        first = self._first[:, None] * entries.shape[1]
        return entries.flatten(0, 1), torch.where(selection >= 0, selection.long() + first, -1)

    def _append(self, kind: str, layer: int, rows: Tensor, quantise: Callable[[Tensor], Tensor]) -> None:
        ratio = self._config.compress_ratios[layer]
        entries = self._store(kind, layer, -(-self._length // ratio), rows)
        entries.index_copy_(1, self.position // ratio, quantise(rows).unsqueeze(1))

    def _store(self, kind: str, layer: int, places: int, like: Tensor) -> Tensor:
        """[n, places, columns of `like`], made when it is first asked for."""
        if (kind, layer) not in self._stores:
            self._stores[kind, layer] = like.new_zeros(self._count, places, like.shape[1])
        return self._stores[kind, layer]
