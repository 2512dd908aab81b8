"""The model package's own `Model` over working tensors, and the losses of one pass through it."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass

import torch
from tools.train.backbone.experts import DenseExperts
from tools.train.backbone.memory import PassShape, TrainingMemory
from tools.train.backbone.numerics import TrainingNumerics
from tools.train.backbone.ops import TrainingOps
from tools.train.backbone.parameters import MasterWeights
from tools.train.backbone.rows import token_losses
from torch import Tensor

from thalweg.model import ForwardBatch, Model, ModelConfig, TargetFeatures, tensor_specs
from thalweg.model.engram_vocabulary import EngramVocabulary


@dataclass(frozen=True, slots=True)
class Losses:
    """What one pass leaves."""

    tokens: Tensor
    """float32 [B * S] negative log-likelihood of each next token."""
    indexers: list[Tensor]
    """float32 [] of each index source, in order; empty where indexers do not learn."""
    loads: list[tuple[Tensor, Tensor]]
    """Router bias and rows per expert of each layer."""


class TrainingNetwork:
    """Forward passes of the backbone over windows that start at position 0."""

    def __init__(
        self,
        config: ModelConfig,
        vocabulary: EngramVocabulary,
        masters: Mapping[str, Tensor],
        device: torch.device,
        activations: torch.dtype = torch.bfloat16,
    ) -> None:
        """masters: float32 by checkpoint name."""
        self.config = config
        self.ops = TrainingOps(device)
        self.numerics = TrainingNumerics(self.ops, activations)
        specs = {spec.name: spec for spec in tensor_specs(config) if not spec.is_scale}
        on_device = {name: value.to(device=device, dtype=torch.float32) for name, value in masters.items()}
        self.weights = MasterWeights(specs, on_device, activations)
        self.model = Model(config, self.weights, self.numerics, vocabulary, DenseExperts)
        self._device = device
        self._compressed_ids = torch.from_numpy(vocabulary.compressed_ids).to(device)
        self._pad_id = vocabulary.pad_id

    def hidden(
        self, tokens: Tensor, shape: PassShape, blocks: Tensor | None = None, features: TargetFeatures | None = None
    ) -> tuple[Tensor, TrainingMemory]:
        """Final normed rows [B * S, h] of tokens int64 [B, S], and what the pass left behind."""
        memory = TrainingMemory(self.config, self.numerics, shape, blocks, self._device)
        self.ops.begin(memory)
        batch = ForwardBatch(tokens.flatten(), memory.positions, self.ngram_ids(tokens))
        rows = self.model.token_rows(batch.token_ids)
        return self.model.forward_rows(rows, batch, memory, features=features), memory

    def losses(self, windows: Tensor, shape: PassShape, blocks: Tensor | None = None) -> Losses:
        """Of windows int64 [B, S + 1], every token but the first to be predicted."""
        hidden, memory = self.hidden(windows[:, :-1], shape, blocks)
        tokens = token_losses(hidden, self.model.parameters["head.weight"], windows[:, 1:].flatten())
        return Losses(tokens, memory.indexer_losses() if blocks is not None else [], memory.loads)

    def ngram_ids(self, tokens: Tensor) -> Tensor:
        """int64 [B * S, N]: compressed ids of every token and those before it, newest first, then the pad."""
        size = self.config.engram_max_ngram_size
        ids = torch.nn.functional.pad(self._compressed_ids[tokens], (size - 1, 0), value=self._pad_id)
        length = tokens.shape[1]
        return torch.stack([ids[:, size - 1 - age :][:, :length] for age in range(size)], -1).flatten(0, 1)
