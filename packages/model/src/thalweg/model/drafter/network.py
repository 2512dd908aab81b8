"""The network that proposes tokens: window-only layers over target features, and a head that goes token by token."""

from __future__ import annotations

from pathlib import Path
from typing import cast

import torch

from thalweg.interfaces import CacheViews
from thalweg.kernels import DraftIndices
from thalweg.model.assembly import build_layer
from thalweg.model.backbone import Model
from thalweg.model.config import ModelConfig
from thalweg.model.drafter.block_memory import BlockMemory, WindowMemory
from thalweg.model.drafter.main_keys import MainKeys
from thalweg.model.drafter.source import draft_tensors
from thalweg.model.forward_state import ForwardState
from thalweg.model.heads import Embedding, Head
from thalweg.model.hyper_connections import collapse, start_trunk
from thalweg.model.memory import AttentionMemory
from thalweg.model.metadata import ForwardBatch
from thalweg.model.moe import MixtureOfExperts
from thalweg.model.numerics import Numerics
from thalweg.model.paged import window_format
from thalweg.model.rope import RotaryTables
from thalweg.model.weights import Weights


class DraftNetwork:
    """The draft layers (`mtp.*`) of a checkpoint; token table and language-model head are those of the target model.

    Satisfies `thalweg.model.drafter.BlockNetwork`.
    """

    def __init__(
        self,
        config: ModelConfig,
        weights: Weights,
        numerics: Numerics,
        embedding_table: torch.Tensor,
        head_weight: torch.Tensor,
        experts: type[MixtureOfExperts] = MixtureOfExperts,
    ) -> None:
        """embedding_table, head_weight: [V, h]. experts: who computes them.

        `load` builds all of it from a directory.
        """
        first, last = config.num_hidden_layers, config.num_draft_layers - 1
        self.config = config
        self.numerics = numerics
        self.main_keys = MainKeys(config, weights, numerics)
        self._layers = [build_layer(config, first + block, weights, numerics, 0, experts) for block in range(last + 1)]
        self._embedding = Embedding(embedding_table, numerics)
        norm = weights.plain(f"mtp.{last}.norm.weight")
        self._head = Head(norm, head_weight, norm_eps=config.rms_norm_eps, numerics=numerics)
        self._markov_rows = weights.plain(f"mtp.{last}.markov_head.embed.weight")
        self._markov_head = weights.plain(f"mtp.{last}.markov_head.head.weight")
        self._confidence = weights.plain(f"mtp.{last}.confidence_head.proj.weight")
        self.tables = RotaryTables(config, numerics)
        self.parameters = weights.parameters
        """Every weight tensor of its own by name; a joined matrix has the names of its parts joined with `+`."""

    @classmethod
    def load(cls, path: str | Path, model: Model) -> DraftNetwork:
        """Read the draft layers of the checkpoint that `model` was loaded from, in the model's mode and arithmetic.

        Raises ConfigError when there are none or when the checkpoint is another one, CheckpointError when an `mtp.*`
        tensor is missing or stays unused: output would still be right then, and only drafts bad.
        """
        head = "embed.weight" if model.config.tie_word_embeddings else "head.weight"
        shared = model.parameters["embed.weight"], model.parameters[head]
        with draft_tensors(path, model.config) as source:
            return cls(model.config, Weights(source, model.numerics), model.numerics, *shared)

    def write_main_keys(
        self, features: torch.Tensor, positions: torch.Tensor, views: CacheViews, slots: torch.Tensor
    ) -> None:
        """Store the window keys of every draft layer for rows that the target model has processed."""
        record_format = window_format(self.config, self.numerics, views)
        keys = self.main_keys(features, self.tables.at(positions, 0))
        for layer, rows in enumerate(keys.unbind(1), self.config.num_hidden_layers):
            self.numerics.ops.store_records(views.window(layer), slots, rows, record_format)

    def block_memory(self, views: CacheViews, indices: DraftIndices) -> BlockMemory:
        """Where the rows of a block write their keys and which they read."""
        return BlockMemory(views, indices, window_format(self.config, self.numerics, views), self.numerics)

    def block_rows(
        self,
        token_ids: torch.Tensor,
        positions: torch.Tensor,
        is_valid: torch.Tensor | None,
        memory: WindowMemory,
    ) -> torch.Tensor:
        """Collapsed rows [n, h] of the block rows, before the final norm.

        token_ids, positions: int64 [n]; is_valid: bool [n], false on rows of nobody; None = all valid.
        """
        batch = ForwardBatch(
            token_ids, positions, ngram_ids=token_ids.new_empty((token_ids.shape[0], 0)), valid_mask=is_valid
        )
        # Draft layers have no compressed stream: they ask a memory for windows and for nothing else.
        state = ForwardState(batch, cast("AttentionMemory", memory), self.tables, trace=None)
        trunk, read = start_trunk(self._embedding.rows(token_ids), self.config.hc_mult)
        for layer in self._layers:
            trunk, read = layer(trunk, read, state)
        return collapse(trunk, read, self.numerics)

    def base_logits(self, rows: torch.Tensor) -> torch.Tensor:
        """float32 [n, V] for collapsed rows [n, h], before the Markov bias."""
        return self._head.logits(self._head.normed(rows))

    def markov_rows(self, token_ids: torch.Tensor) -> torch.Tensor:
        """[n, r] of the tokens int [n] that precede the drafts."""
        return torch.nn.functional.embedding(token_ids, self._markov_rows)

    def biased(self, base_logits: torch.Tensor, markov_rows: torch.Tensor) -> torch.Tensor:
        """float32 [n, V]: base logits with the Markov bias of the token before, rounded once."""
        bias = self.numerics.ops.matmul(markov_rows, self._markov_head)
        biased: torch.Tensor = (base_logits + bias).float()
        return biased

    def confidences(self, rows: torch.Tensor, markov_rows: torch.Tensor, temperature: float) -> torch.Tensor:
        """float32 [n]: how sure the drafter is, from collapsed rows [n, h] and the Markov rows [n, r] before them."""
        weight = self._confidence.flatten()
        confidence: torch.Tensor = self.numerics.ops.confidence(rows, markov_rows, weight, temperature)
        return confidence
