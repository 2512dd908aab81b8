"""The network that proposes tokens: window-only layers over target features, and a head that goes token by token."""

from __future__ import annotations

from pathlib import Path
from typing import cast

import torch

from thalweg.interfaces import CacheViews
from thalweg.kernels import DraftIndices
from thalweg.model.drafter.source import draft_tensors
from thalweg.model.metadata import ForwardBatch
from thalweg.model.native.assembly import build_layers
from thalweg.model.native.backbone import NativeModel
from thalweg.model.native.drafter.block_memory import BlockMemory
from thalweg.model.native.drafter.main_keys import MainKeys
from thalweg.model.native.layer import run_layers
from thalweg.model.native.memory import NativeMemory
from thalweg.model.native.state import NativeState
from thalweg.model.native.weights import DeviceWeights
from thalweg.model.weights import TensorSource


class NativeDraftNetwork:
    """The draft layers (`mtp.*`) of a checkpoint; token table, head and rotary tables are those of the target model.

    Satisfies `thalweg.model.drafter.BlockNetwork`.
    """

    def __init__(self, source: TensorSource, model: NativeModel) -> None:
        """source: stored tensors of the checkpoint that the model is of."""
        config, ops = model.config, model.ops
        weights = DeviceWeights(source, ops, model.device)
        last = config.num_draft_layers - 1
        self.config = config
        self.numerics = model.numerics
        self._ops = ops
        self._embedding = model.embedding
        self._head = model.head
        self._tables = model.tables
        self._main_keys = MainKeys(config, weights, ops)
        self._norm = weights.plain(f"mtp.{last}.norm.weight")
        first = config.num_hidden_layers
        self._layers = build_layers(config, range(first, first + last + 1), weights, self._norm, 0)
        self._markov_rows = weights.plain(f"mtp.{last}.markov_head.embed.weight")
        self._markov_head = weights.plain(f"mtp.{last}.markov_head.head.weight")
        self._confidence = weights.plain(f"mtp.{last}.confidence_head.proj.weight").flatten()

    @classmethod
    def load(cls, path: str | Path, model: NativeModel) -> NativeDraftNetwork:
        """Read the draft layers of the checkpoint that `model` was loaded from.

        Raises ConfigError when there are none or when the checkpoint is another one, CheckpointError when an `mtp.*`
        tensor is missing or stays unused.
        """
        with draft_tensors(path, model.config) as source:
            return cls(source, model)

    def write_main_keys(
        self, features: torch.Tensor, positions: torch.Tensor, views: CacheViews, slots: torch.Tensor
    ) -> None:
        """Store the window keys of every draft layer for rows that the target model has processed."""
        self._main_keys.write(features, self._tables.at(positions, 0), views, slots)

    def block_memory(self, views: CacheViews, indices: DraftIndices) -> BlockMemory:
        """Where the rows of a block write their keys and which they read."""
        return BlockMemory(self.config, self._ops, views, indices)

    def block_rows(
        self, token_ids: torch.Tensor, positions: torch.Tensor, is_valid: torch.Tensor, memory: BlockMemory
    ) -> torch.Tensor:
        """Collapsed rows bfloat16 [n, h] of the block rows, before the final norm."""
        ngram_ids = token_ids.new_empty((token_ids.shape[0], 0))
        batch = ForwardBatch(token_ids, positions, ngram_ids, valid_mask=is_valid)
        # Draft layers have no compressed stream: they ask a memory for windows and for nothing else.
        state = NativeState(self._ops, batch, cast("NativeMemory", memory), self._tables)
        residual = run_layers(self._layers, self._embedding.rows(token_ids), self.config, state)
        collapsed: torch.Tensor = self._ops.hc_collapse(residual.trunk, residual.read)
        return collapsed

    def base_logits(self, rows: torch.Tensor) -> torch.Tensor:
        """float32 [n, V] for collapsed rows [n, h], before the Markov bias."""
        return self._head.logits(self._ops.rms_norm(rows, self._norm, self.config.rms_norm_eps))

    def markov_rows(self, token_ids: torch.Tensor) -> torch.Tensor:
        """bfloat16 [n, r] of the tokens int [n] that precede the drafts."""
        return torch.nn.functional.embedding(token_ids, self._markov_rows)

    def biased(self, base_logits: torch.Tensor, markov_rows: torch.Tensor) -> torch.Tensor:
        """float32 [n, V]: base logits with the Markov bias of the token before."""
        bias: torch.Tensor = self._ops.bf16_linear(markov_rows, self._markov_head, torch.float32)
        return bias.add_(base_logits)

    def confidences(self, rows: torch.Tensor, markov_rows: torch.Tensor, temperature: float) -> torch.Tensor:
        """float32 [n]: how sure the drafter is, from collapsed rows [n, h] and the Markov rows [n, r] before them."""
        confidence: torch.Tensor = self._ops.confidence(rows, markov_rows, self._confidence, temperature)
        return confidence
