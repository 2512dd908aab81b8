"""The whole text model on stored formats: embedding, backbone layers, head, over a paged cache."""

from __future__ import annotations

from functools import partial
from pathlib import Path

import torch

from thalweg.interfaces import CacheViews, ConfigError
from thalweg.kernels import BoundOps, bind
from thalweg.model.config import ModelConfig
from thalweg.model.engram_vocabulary import EngramVocabulary
from thalweg.model.loader import Checkpoint
from thalweg.model.metadata import ConsumerMetadata, DecodeMetadata, ForwardBatch, PrefillMetadata
from thalweg.model.native.assembly import build_layers
from thalweg.model.native.heads import Embedding, Head
from thalweg.model.native.layer import run_layers
from thalweg.model.native.memory import NativeMemory
from thalweg.model.native.paged_decode import PagedDecodeMemory
from thalweg.model.native.paged_prefill import PagedPrefillMemory
from thalweg.model.native.rope import DeviceRotaryTables
from thalweg.model.native.state import NativeState
from thalweg.model.native.weights import DeviceWeights
from thalweg.model.numerics import Numerics
from thalweg.model.paged import window_format
from thalweg.model.replay import ConsumerPass, consumer_pass
from thalweg.model.target_features import TargetFeatures
from thalweg.model.trace import Trace
from thalweg.model.weights import TensorSource


class NativeModel:
    """DeepSeek-V4.1 for text in the formats of the release, on one device.

    Nothing of a forward pass is read back to the host, and in decode every shape follows from those of the batch and
    its metadata: a graph can hold it. So contents are not checked either: token ids and positions are the caller's.
    """

    def __init__(
        self,
        config: ModelConfig,
        source: TensorSource,
        ops: BoundOps,
        vocabulary: EngramVocabulary | None,
        *,
        device: torch.device | str = "cpu",
        num_positions: int | None = None,
    ) -> None:
        """source: stored tensors of the checkpoint. vocabulary: needed where the config has Engram layers.

        ops: of the device, from `thalweg.kernels.bind`. num_positions: positions that rows may have, drafts beyond the
        end of a sequence included; by default all that the config knows and what drafts add. Raises ConfigError.
        """
        if vocabulary is None and config.engram_layer_ids:
            raise ConfigError(f"engram_layer_ids is {list(config.engram_layer_ids)} but there is no Engram vocabulary")
        if num_positions is None:
            # Drafts of a step, of the one that is launched before it ends, and those proposed behind them.
            num_positions = config.max_position_embeddings + 3 * config.dspark_block_size + 1
        if num_positions < 1:
            raise ConfigError(f"num_positions is {num_positions}; it must be at least 1")
        self.config = config
        self.ops = ops
        self.device = torch.device(device)
        self.numerics = Numerics("quant", "float32", ops)
        """The mode, for those who ask for it: this model rounds inside its ops."""
        self.vocabulary = vocabulary
        self.num_positions = num_positions
        self.tables = DeviceRotaryTables(config, num_positions, self.device)
        weights = DeviceWeights(source, ops, self.device)
        self.embedding = Embedding(weights.plain("embed.weight"))
        tied = config.tie_word_embeddings
        self.head = Head(self.embedding.table if tied else weights.plain("head.weight"), ops)
        vocab_size = vocabulary.size if vocabulary is not None else 0
        final_norm = weights.plain("norm.weight")
        self._layers = build_layers(config, range(config.num_hidden_layers), weights, final_norm, vocab_size)

    @classmethod
    def load(
        cls,
        path: str | Path,
        ops: BoundOps | None = None,
        *,
        device: torch.device | str = "cpu",
        num_positions: int | None = None,
    ) -> NativeModel:
        """Read a checkpoint directory onto a device.

        ops: kernels from `thalweg.kernels.bind`; the CPU's by default, and on no other device. Raises ConfigError for
        config values and missing ops, CheckpointError for files.
        """
        if ops is None:
            if torch.device(device).type != "cpu":
                raise ConfigError(f"ops is None with device {device}; give those of its backend, from `bind`")
            ops = bind("cpu")
        with Checkpoint.open(path) as checkpoint:
            config = checkpoint.config
            vocabulary = EngramVocabulary.from_checkpoint(path, config) if config.engram_layer_ids else None
            return cls(config, checkpoint, ops, vocabulary, device=device, num_positions=num_positions)

    def forward(
        self,
        batch: ForwardBatch,
        memory: NativeMemory,
        trace: Trace | None = None,
        features: TargetFeatures | None = None,
        consumers: ConsumerPass[NativeMemory] | None = None,
    ) -> torch.Tensor:
        """Final normed rows bfloat16 [T, h]. features: collects what a drafter reads of the rows.

        consumers: from `consumer_pass`, under bounded replay; then rows and features are those that it keeps.

        Raises ConfigError for an image mask without embeddings.
        """
        state = NativeState(self.ops, batch, memory, self.tables, trace, features, consumers)
        residual = run_layers(self._layers, self.embedding(batch), self.config, state)
        state.record("final_hidden", -1, residual.rows.rows)
        return residual.rows.rows

    def logits(self, hidden: torch.Tensor) -> torch.Tensor:
        """float32 [n, V] for any rows [n, h] that `forward` returned."""
        return self.head.logits(hidden)

    def paged_memory(
        self, views: CacheViews, metadata: PrefillMetadata | DecodeMetadata, positions: torch.Tensor
    ) -> NativeMemory:
        """The attention memory of one step over cache pools; positions: int64 [T] of the step's rows.

        Writes go to the pools at once. Raises ConfigError for pools whose records are not those of `quant` mode.
        """
        window_format(self.config, self.numerics, views)
        if isinstance(metadata, PrefillMetadata):
            return PagedPrefillMemory(self.config, self.ops, views, metadata, positions)
        return PagedDecodeMemory(self.config, self.ops, views, metadata)

    def consumer_pass(
        self, views: CacheViews, metadata: PrefillMetadata, consumers: ConsumerMetadata, batch: ForwardBatch
    ) -> ConsumerPass[NativeMemory]:
        """What the consumer layers of a prefill step run over; metadata and batch are the whole step's.

        Raises ConfigError for a config that bounded replay cannot serve.
        """
        return consumer_pass(self.config, metadata, consumers, batch, partial(self.paged_memory, views))
