"""Puts the device work of a deployment together over cache pools of any size."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any

from thalweg.cache import CacheGeometry, CachePools, ConsumerReplay, MetadataShape
from thalweg.engine.config import EngineConfig
from thalweg.engine.drafting import cached_drafter
from thalweg.engine.graphs import graph_sizes
from thalweg.engine.inputs import InputBuilder
from thalweg.engine.loading import LoadedDraftNetwork, LoadedModel
from thalweg.engine.model_device import ModelDevice
from thalweg.engine.model_inputs import ModelInputs
from thalweg.engine.sample_stage import SampleStage
from thalweg.engine.token_rows import CompressedVocabulary
from thalweg.engine.upload import Uploader
from thalweg.interfaces import Backend, Drafter
from thalweg.model import ModelConfig


@dataclass(frozen=True, slots=True)
class DeviceMaker:
    """What is the same for the cache of a deployment and for the small one that its memory is measured with."""

    config: EngineConfig
    """Settled."""
    backend: Backend
    ops: Any
    """Bound kernel ops."""
    geometry: CacheGeometry
    table_width: int
    """Columns of block tables."""
    model: LoadedModel
    network: LoadedDraftNetwork | None
    """Of the checkpoint's drafter; None without drafts, or with a drafter of the caller's own."""
    own_drafter: Drafter | None = None
    replay: ConsumerReplay | None = None

    @property
    def draft_length(self) -> int:
        return self.config.speculation.draft_length or 0

    @property
    def has_graphs(self) -> bool:
        """Whether decode steps are captured."""
        return self.config.backend.graphs and self.backend.has_graphs

    @property
    def step_sizes(self) -> tuple[int, ...]:
        """Numbers of query tokens that decode steps are padded to, ascending; none without graphs."""
        if not self.has_graphs:
            return ()
        largest = self.config.scheduler.max_num_seqs * (1 + self.draft_length)
        return graph_sizes(largest, self.config.backend.graph_interval)

    @property
    def draft_sizes(self) -> tuple[int, ...]:
        """The same for sequences that are drafted for."""
        return graph_sizes(self.config.scheduler.max_num_seqs, self.config.backend.draft_graph_interval)

    def inputs(self) -> InputBuilder:
        """What makes the host's part of the inputs."""
        shape, vocabulary = MetadataShape.of(self.geometry), compressed_vocabulary(self.model)
        return InputBuilder(shape, vocabulary, self.step_sizes, self.replay)

    def device(self, num_blocks: int, num_state_slots: int) -> ModelDevice:
        """The device work over new pools. Raises CapacityError where there is not so much memory."""
        config, backend = self.config, self.backend
        pools = CachePools(self.geometry, num_blocks, num_state_slots, backend.device)
        upload, vocabulary = Uploader(backend), compressed_vocabulary(self.model)
        vocab_size = self.model.config.vocab_size
        drafter = self.own_drafter
        if self.network is not None and self.draft_length:
            drafter = cached_drafter(self.network, pools, config)
        stage = SampleStage(
            backend,
            self.ops,
            upload,
            vocab_size=vocab_size,
            num_draft_slots=1 + config.scheduler.max_num_seqs,
            num_state_slots=num_state_slots,
            drafter=drafter,
            verification=config.speculation.verification,
            draft_positions=config.speculation.draft_positions,
            sampling=config.sampling,
            logprobs_mode=config.logprobs_mode,
        )
        inputs = ModelInputs(
            backend,
            self.ops,
            upload,
            MetadataShape.of(self.geometry),
            self.table_width,
            vocabulary,
            vocab_size,
            with_mask=self.has_graphs,
        )
        return ModelDevice(self.model, pools, inputs, stage, drafter)

    def capture(self, device: ModelDevice, step_sizes: tuple[int, ...], draft_sizes: tuple[int, ...]) -> None:
        """Capture graphs of these sizes, ascending."""
        example = self.inputs().dummy(step_sizes[-1], self.draft_length, self.model.config.vocab_size)
        device.capture(self.backend, example, step_sizes, draft_sizes)


def tail_length(facts: ModelConfig) -> int:
    """How many of a sequence's last tokens a plan carries: those that an n-gram window looks at."""
    return facts.engram_max_ngram_size if facts.engram_layer_ids else 1


def compressed_vocabulary(model: LoadedModel) -> CompressedVocabulary:
    """The map behind the n-gram windows of a model."""
    if model.vocabulary is None:
        return CompressedVocabulary.none()
    return CompressedVocabulary(
        model.vocabulary.compressed_ids, model.vocabulary.pad_id, model.config.engram_max_ngram_size
    )
