"""What attention remembers during one training pass, and what the pass leaves behind for losses."""

from __future__ import annotations

from dataclasses import dataclass

import torch
from tools.train.backbone.attention import entry_mass
from tools.train.backbone.indexer import divergence
from torch import Tensor

from thalweg.model.config import ModelConfig
from thalweg.model.numerics import Numerics


@dataclass(frozen=True, slots=True)
class PassShape:
    """What the compiled functions of a pass depend on."""

    batch: int
    """Sequences."""
    length: int
    """Tokens of each, a multiple of the window and of all compress ratios."""
    is_sparse: bool = False
    """Whether layers attend to the entries that an indexer selected, or to all that are visible."""
    study_blocks: int = 0
    """Blocks of W rows of each sequence from which indexers learn; 0 = they do not."""
    dense_entries: int = 1024
    """Longest stream whose selected entries are masked in dense products; those of longer ones are gathered."""


class TrainingMemory:
    """Keys of whole sequences of one length; satisfies `AttentionMemory`.

    Where the contract hands out lists of indices, this memory hands out masks or lists per sequence, [B, S, ...], which
    only `TrainingOps` understands.
    """

    def __init__(
        self, config: ModelConfig, numerics: Numerics, shape: PassShape, blocks: Tensor | None, device: torch.device
    ) -> None:
        """blocks: int64 [study_blocks], the blocks of rows that indexers learn from; None = they do not."""
        self.shape = shape
        self.blocks = blocks
        self.window_size = config.sliding_window
        self.positions = torch.arange(shape.length, device=device).repeat(shape.batch)
        """int64 [T]"""
        self.loads: list[tuple[Tensor, Tensor]] = []
        """Router bias and rows per expert, of every layer in order."""
        self._config = config
        self._numerics = numerics
        self._device = device
        self._main: dict[int, Tensor] = {}
        self._index_keys: dict[int, Tensor] = {}
        self._layer = -1
        self._scores: list[Tensor] = []
        self._masses: dict[int, list[Tensor]] = {}

    def window(self, layer: int, rows: Tensor) -> tuple[Tensor, Tensor]:
        self._layer = layer
        return rows, rows.new_empty(self.shape.batch, self.shape.length, 0)

    def entry_positions(self, ratio: int) -> Tensor:
        entries = self.shape.length // ratio
        return (ratio * torch.arange(entries, device=self._device)).repeat(self.shape.batch)

    def pool(self, layer: int, score: Tensor, latent: Tensor) -> Tensor:
        ratio = self._config.compress_ratios[layer]
        groups = (-1, ratio, score.shape[-1])
        pooled: Tensor = self._numerics.ops.pool_groups(score.reshape(groups), latent.reshape(groups))
        return pooled

    def append_main(self, layer: int, rows: Tensor) -> None:
        self._main[layer] = rows

    def append_index_keys(self, layer: int, rows: Tensor) -> None:
        self._index_keys[layer] = rows

    def index_keys(self, layer: int) -> tuple[Tensor, Tensor, Tensor]:
        """The ranges are int64 [S], those of every sequence."""
        ratio = self._config.compress_ratios[layer]
        end = (torch.arange(self.shape.length, device=self._device) + 1) // ratio
        return self._index_keys[layer], torch.zeros_like(end), end

    def selected_main(self, layer: int, selection: Tensor) -> tuple[Tensor, Tensor]:
        return self._main[layer], selection

    def study_scores(self, scores: Tensor) -> None:
        """Keep the scores [B, R, E] of the next index source, rows of `blocks`."""
        self._scores.append(scores)

    def study_attention(self, queries: Tensor, keys: Tensor, entries: Tensor, sink: Tensor) -> None:
        """Keep how the layer at work spreads its attention over entries; arguments as of `entry_mass`."""
        assert self.blocks is not None
        kind = self._config.topology[self._layer]
        assert kind.index_source is not None
        with torch.no_grad():
            mass = entry_mass(queries, keys, entries, sink, self.blocks, self.window_size, kind.ratio)
        self._masses.setdefault(kind.index_source, []).append(mass)

    def indexer_losses(self) -> list[Tensor]:
        """The loss of each index source: divergence from the mean attention of all layers that use its selection."""
        scale = (self._config.index_n_heads * self._config.index_head_dim) ** -0.5
        losses = []
        for source, scores in zip(self._config.topology.index_sources, self._scores, strict=True):
            masses = self._masses[source]
            target = masses[0] if len(masses) == 1 else torch.stack(masses).mean(0)
            losses.append(divergence(target, scores, scale))
        return losses
