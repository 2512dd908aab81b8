"""Attention memory for many sequences that grow by one token at a time, all of them at the same position."""

from __future__ import annotations

from collections.abc import Callable

import torch
from torch import Tensor

from thalweg.model import ModelConfig, Numerics


class LockstepMemory:
    """Keys of n sequences of up to L tokens in tensors of that size; a pass has one row per sequence.

    Satisfies `thalweg.model.AttentionMemory`. `position` is that of the pass and moves on with `advance`.
    """

    def __init__(self, config: ModelConfig, count: int, length: int, numerics: Numerics, device: torch.device) -> None:
        """count: n; length: L."""
        self.position = 0
        self._config = config
        self._numerics = numerics
        self._count = count
        self._length = length
        self._first = torch.arange(count, device=device)
        self._stores: dict[tuple[str, int], Tensor] = {}

    def advance(self) -> None:
        """The next pass is about the next position."""
        self.position += 1

    def window(self, layer: int, rows: Tensor) -> tuple[Tensor, Tensor]:
        keys = self._store("window", layer, self._length, rows.shape[1], rows)
        keys[:, self.position] = self._numerics.mxfp8(rows)
        width = self._config.sliding_window
        visible = min(self.position + 1, width)
        places = torch.arange(width, device=rows.device)
        oldest = self._first[:, None] * self._length + self.position + 1 - visible
        return keys.flatten(0, 1), torch.where(places < visible, oldest + places, -1)

    def entry_positions(self, ratio: int) -> Tensor:
        last = self.position + 1 - ratio
        return self._first.new_full((self._count if self._completes(ratio) else 0,), last)

    def pool(self, layer: int, score: Tensor, latent: Tensor) -> Tensor:
        ratio = self._config.compress_ratios[layer]
        scores = self._store("score", layer, ratio, score.shape[1], score)
        latents = self._store("latent", layer, ratio, latent.shape[1], latent)
        place = self.position % ratio
        scores[:, place], latents[:, place] = score, latent
        if not self._completes(ratio):
            return score[:0]
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

    def _completes(self, ratio: int) -> bool:
        """Whether this position is the last of a group."""
        return (self.position + 1) % ratio == 0

    def _append(self, kind: str, layer: int, rows: Tensor, quantise: Callable[[Tensor], Tensor]) -> None:
        ratio = self._config.compress_ratios[layer]
        entries = self._store(kind, layer, self._length // ratio, rows.shape[1], rows)
        if self._completes(ratio):
            entries[:, self.position // ratio] = quantise(rows)

    def _store(self, kind: str, layer: int, places: int, width: int, like: Tensor) -> Tensor:
        """[n, places, width], made when it is first asked for."""
        if (kind, layer) not in self._stores:
            self._stores[kind, layer] = like.new_zeros(self._count, places, width)
        return self._stores[kind, layer]


def lockstep_scores(q: Tensor, weights: Tensor, keys: Tensor, begin: Tensor, end: Tensor) -> Tensor:
    """The op `indexer_scores` where every row has as many keys of its own: [n, M], -inf past its visible entries.

    q [n, G, d], weights [n, G], keys [n * M, d], begin and end int64 [n].
    """
    own = keys.view(len(q), -1, keys.shape[1])
    scores = (weights.unsqueeze(1) @ torch.relu(q @ own.mT)).squeeze(1)
    return scores.masked_fill(torch.arange(own.shape[1], device=q.device) >= (end - begin)[:, None], -torch.inf)
