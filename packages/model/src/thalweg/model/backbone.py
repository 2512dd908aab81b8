"""The whole text model: embedding, backbone layers, head, over whichever attention memory the caller brings."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from functools import partial
from pathlib import Path

import numpy as np
import torch

from thalweg.interfaces import CacheViews, ConfigError
from thalweg.kernels import BoundOps, bind
from thalweg.model.assembly import build_embedding, build_head, build_layer
from thalweg.model.config import ModelConfig
from thalweg.model.engram_vocabulary import EngramVocabulary
from thalweg.model.forward_state import ForwardState
from thalweg.model.hyper_connections import start_trunk
from thalweg.model.loader import Checkpoint
from thalweg.model.memory import AttentionMemory, SequenceMemory
from thalweg.model.metadata import ConsumerMetadata, DecodeMetadata, ForwardBatch, PrefillMetadata
from thalweg.model.moe import MixtureOfExperts
from thalweg.model.numerics import Numerics
from thalweg.model.paged import paged_memory
from thalweg.model.replay import ConsumerPass, consumer_pass
from thalweg.model.rope import RotaryTables
from thalweg.model.target_features import TargetFeatures
from thalweg.model.trace import Trace
from thalweg.model.weights import Weights


class Model:
    """DeepSeek-V4.1 for text, on one device.

    Producer layers and the first consumer layer write the compressed streams, later layers only read them. All layers
    run over one code path; whether keys live in tensors of the pass or in the paged cache is the memory's business.
    """

    def __init__(
        self,
        config: ModelConfig,
        weights: Weights,
        numerics: Numerics,
        vocabulary: EngramVocabulary | None,
        experts: type[MixtureOfExperts] = MixtureOfExperts,
    ) -> None:
        """vocabulary: needed where the config has Engram layers. experts: who computes them.

        `load` builds all of it from a directory.
        """
        if vocabulary is None and config.engram_layer_ids:
            raise ConfigError(f"engram_layer_ids is {list(config.engram_layer_ids)} but there is no Engram vocabulary")
        self.config = config
        self.numerics = numerics
        self.vocabulary = vocabulary
        vocab_size = vocabulary.size if vocabulary is not None else 0
        self._embedding = build_embedding(config, weights, numerics)
        self._layers = [
            build_layer(config, layer, weights, numerics, vocab_size, experts)
            for layer in range(config.num_hidden_layers)
        ]
        self._head = build_head(config, weights, numerics)
        self._tables = RotaryTables(config, numerics)
        self._num_ngram_ids = config.engram_max_ngram_size if config.engram_layer_ids else 0
        self.parameters: Mapping[str, torch.Tensor] = weights.parameters
        """Every weight tensor by name; a joined matrix has the names of its parts joined with `+`."""

    @classmethod
    def load(
        cls,
        path: str | Path,
        mode: str = "quant",
        arithmetic: str = "exact",
        ops: BoundOps | None = None,
        *,
        trainable: bool = False,
    ) -> Model:
        """Read a checkpoint directory.

        mode: `quant` (every rounding of the device kernels) or `plain` (none). arithmetic: `exact` (float64 carriers)
        or `float32`. ops: kernels from `thalweg.kernels.bind`, the CPU's by default. trainable: weights collect
        gradients, in `plain` mode only. Raises ConfigError for options and config values, CheckpointError for files.
        """
        numerics = Numerics(mode, arithmetic, bind("cpu") if ops is None else ops)
        if trainable and numerics.is_quant:
            raise ConfigError("trainable is True in mode 'quant'; rounding has no gradient, use mode 'plain'")
        with Checkpoint.open(path) as checkpoint:
            config = checkpoint.config
            vocabulary = None
            if config.engram_layer_ids:
                vocabulary = EngramVocabulary.from_checkpoint(path, config)
            return cls(config, Weights(checkpoint, numerics, trainable=trainable), numerics, vocabulary)

    def forward(
        self,
        batch: ForwardBatch,
        memory: AttentionMemory,
        trace: Trace | None = None,
        features: TargetFeatures | None = None,
        consumers: ConsumerPass[AttentionMemory] | None = None,
    ) -> torch.Tensor:
        """Final normed rows [T, h] in the carrier dtype.

        features: collects what a drafter reads of the rows. consumers: from `consumer_pass`, under bounded replay; then
        rows and features are those that it keeps.
        Raises RequestError for rows the model cannot take: token ids outside the vocabulary, or an image mask without
        fitting embeddings; ConfigError for tensors of a wrong dtype or shape.
        """
        self._check(batch)
        return self.forward_rows(self._embedding(batch), batch, memory, trace, features, consumers)

    def token_rows(self, token_ids: torch.Tensor) -> torch.Tensor:
        """Embedded rows [n, h] of ids int [n] that are known to be in the vocabulary: nothing is read back."""
        return self._embedding.rows(token_ids)

    def forward_rows(
        self,
        rows: torch.Tensor,
        batch: ForwardBatch,
        memory: AttentionMemory,
        trace: Trace | None = None,
        features: TargetFeatures | None = None,
        consumers: ConsumerPass[AttentionMemory] | None = None,
    ) -> torch.Tensor:
        """As `forward`, without its checks, from rows [T, h] that are embedded already."""
        state = ForwardState(batch, memory, self._tables, trace, features, consumers)
        trunk, read = start_trunk(rows, self.config.hc_mult)
        for layer in self._layers:
            trunk, read = layer(trunk, read, state)
        hidden = self._head.final_hidden(trunk, read)
        if trace is not None:
            trace.record("final_hidden", -1, hidden)
        return hidden

    def logits(self, hidden: torch.Tensor) -> torch.Tensor:
        """float32 [n, V] for any rows [n, h] that `forward` returned."""
        return self._head.logits(hidden)

    def paged_memory(
        self, views: CacheViews, metadata: PrefillMetadata | DecodeMetadata, positions: torch.Tensor
    ) -> AttentionMemory:
        """The attention memory of one step over cache pools; positions: int64 [T] of the step's rows."""
        return paged_memory(self.config, self.numerics, views, metadata, positions)

    def consumer_pass(
        self, views: CacheViews, metadata: PrefillMetadata, consumers: ConsumerMetadata, batch: ForwardBatch
    ) -> ConsumerPass[AttentionMemory]:
        """What the consumer layers of a prefill step run over; metadata and batch are the whole step's.

        Raises ConfigError for a config that bounded replay cannot serve.
        """
        return consumer_pass(self.config, metadata, consumers, batch, partial(self.paged_memory, views))

    def forward_sequences(
        self,
        sequences: Sequence[torch.Tensor],
        *,
        image_masks: Sequence[torch.Tensor] | None = None,
        image_embeddings: torch.Tensor | None = None,
        trace: Trace | None = None,
    ) -> list[torch.Tensor]:
        """Logits float32 [L_i, V] of whole sequences, int64 [L_i] each; differentiable in `plain` mode.

        image_masks: bool [L_i] each. image_embeddings: [number of masked rows of all sequences, h].
        """
        lengths = [int(tokens.shape[0]) for tokens in sequences]
        memory = SequenceMemory(self.config, lengths, self.numerics)
        token_ids = torch.cat(list(sequences))
        image_mask = None if image_masks is None else torch.cat(list(image_masks))
        batch = ForwardBatch(
            token_ids=token_ids,
            positions=memory.positions,
            ngram_ids=self._ngram_ids(sequences, image_masks),
            image_mask=image_mask,
            image_embeddings=image_embeddings,
        )
        return list(torch.split(self.logits(self.forward(batch, memory, trace)), lengths))

    def _ngram_ids(self, sequences: Sequence[torch.Tensor], image_masks: Sequence[torch.Tensor] | None) -> torch.Tensor:
        """int64 [T, N] for sequences that start at position 0."""
        if self.vocabulary is None:
            return torch.zeros(sum(len(tokens) for tokens in sequences), 0, dtype=torch.int64)
        windows = [
            self.vocabulary.ngram_ids(
                tokens.numpy(),
                self._num_ngram_ids,
                image_mask=None if image_masks is None else image_masks[index].numpy(),
            )
            for index, tokens in enumerate(sequences)
        ]
        return torch.from_numpy(np.concatenate(windows))

    def _check(self, batch: ForwardBatch) -> None:
        num_rows = batch.token_ids.shape[0]
        _check_tensor("token_ids", batch.token_ids, torch.int64, (num_rows,))
        _check_tensor("positions", batch.positions, torch.int64, (num_rows,))
        if self._num_ngram_ids:
            _check_tensor("ngram_ids", batch.ngram_ids, torch.int64, (num_rows, self._num_ngram_ids))
        for name, mask in (("image_mask", batch.image_mask), ("valid_mask", batch.valid_mask)):
            if mask is not None:
                _check_tensor(name, mask, torch.bool, (num_rows,))


def _check_tensor(name: str, tensor: torch.Tensor, dtype: torch.dtype, shape: tuple[int, ...]) -> None:
    if tensor.dtype != dtype or tuple(tensor.shape) != shape:
        raise ConfigError(f"{name} is {tensor.dtype} {tuple(tensor.shape)}; {dtype} {shape} is needed")
