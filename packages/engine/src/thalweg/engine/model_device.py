"""The device work of a step with a real model: cache copies, inputs, forward pass, sampling, verification, drafting."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import torch

from thalweg.cache import CachePools, copy_blocks, copy_states, zero_states
from thalweg.engine.decode_tensors import from_tensors, tensors_of
from thalweg.engine.device import Forwarded, Prepared, Sampled
from thalweg.engine.graphs import RowGraphs, RowWork
from thalweg.engine.inputs import DecodeInputs, StepInputs
from thalweg.engine.model_inputs import ModelInputs
from thalweg.engine.sample_stage import SampleStage
from thalweg.engine.sampler_inputs import SamplerInputs
from thalweg.interfaces import Backend, Drafter, InvariantError, StepPlan, TargetRows
from thalweg.model import CachedDrafter, Model, NativeModel, TargetFeatures
from thalweg.model.metadata import ConsumerMetadata, DecodeMetadata, ForwardBatch, PrefillMetadata


class ModelDevice:
    """Owns the model and the cache pools of one rank.

    drafter: sees the rows of every forward pass; None = nobody does. It proposes in the sample stage.
    """

    def __init__(
        self,
        model: Model | NativeModel,
        pools: CachePools,
        inputs: ModelInputs,
        stage: SampleStage,
        drafter: Drafter | None = None,
    ) -> None:
        self._model: Model | NativeModel | None = model
        self._pools: CachePools | None = pools
        self._inputs = inputs
        self._stage: SampleStage | None = stage
        self._drafter = drafter
        self._graphs: RowGraphs | None = None

    @property
    def model(self) -> Model | NativeModel:
        """Raises InvariantError after `close`."""
        if self._model is None:
            raise InvariantError("the device is closed")
        return self._model

    @property
    def pools(self) -> CachePools:
        """The cache. Raises InvariantError after `close`."""
        if self._pools is None:
            raise InvariantError("the device is closed")
        return self._pools

    @property
    def drafter(self) -> Drafter | None:
        """Who sees the rows."""
        return self._drafter

    def copy(self, plan: StepPlan) -> None:
        """Copy and clear cache memory as the plan says."""
        if plan.state_copies.size:
            copy_states(self.pools.states, plan.state_copies)
        if plan.block_copies.size:
            copy_blocks(self.pools.blocks, plan.block_copies)
        if plan.zero_state_slots.size:
            zero_states(self.pools.states, plan.zero_state_slots)

    def prepare(self, inputs: StepInputs, left: Sampled | None, *, redistribute: bool) -> Prepared:
        """Complete the inputs with what the step before left behind."""
        return self._inputs.prepare(inputs, left, redistribute=redistribute)

    def forward(self, prepared: Prepared) -> Forwarded:
        """Run the model on the rows, and show them to the drafter; logits of the selected ones."""
        count = prepared.token_ids.shape[0]
        hidden, *seen = (rows[:count] for rows in self._rows(prepared))
        if self._drafter is not None:
            positions, slots = prepared.batch.positions[:count], prepared.metadata.window_store_slots[:count]
            if prepared.consumers is not None:
                positions, slots = prepared.consumers.positions, prepared.consumers.window_store_slots
            self._drafter.observe(TargetRows(seen[0] if seen else None, positions, slots))
        selected = hidden if prepared.selected_rows is None else hidden[prepared.selected_rows]
        is_decode = prepared.selected_rows is None
        return Forwarded(prepared, self.model.logits(selected), None if is_decode else hidden)

    def sample(self, forwarded: Forwarded, inputs: SamplerInputs) -> Sampled:
        """Draw, verify drafts and propose the next ones."""
        hidden = forwarded.hidden
        row_logits = None if hidden is None else lambda rows: self.model.logits(hidden[rows])
        if self._stage is None:
            raise InvariantError("the device is closed")
        return self._stage.run(forwarded.prepared, forwarded.logits, inputs, row_logits)

    def capture(
        self, backend: Backend, example: DecodeInputs, sizes: Sequence[int], draft_sizes: Sequence[int]
    ) -> None:
        """Capture decode passes and, of the checkpoint's drafter, the blocks of drafts. Blocks.

        example: decode rows, as many as the largest of the sizes. From now on decode steps must come in these sizes.
        draft_sizes: numbers of sequences.
        """
        with torch.inference_mode():
            prepared = self.prepare(example, None, redistribute=False)
            batch, metadata = prepared.batch, prepared.metadata
            if isinstance(metadata, PrefillMetadata):
                raise InvariantError("graphs hold decode steps, and the example is a prefill")
            ratios = tuple(metadata.visible_entries)
            self._graphs = RowGraphs(
                backend,
                sizes,
                tensors_of(batch, metadata),
                lambda tensors: self._pass(*from_tensors(tensors, ratios)),
                "decode steps",
            )
            if isinstance(self._drafter, CachedDrafter):
                self._capture_blocks(self._drafter, backend, draft_sizes)

    def release_graphs(self) -> None:
        """Let go of graphs; decode steps may come in any size again."""
        self._graphs = None
        if isinstance(self._drafter, CachedDrafter):
            self._drafter.replace_blocks(lambda compute: compute)

    def close(self) -> None:
        """Let go of weights, cache and graphs."""
        self._model = self._pools = self._graphs = self._drafter = self._stage = None

    def _rows(self, prepared: Prepared) -> Sequence[torch.Tensor]:
        """Final rows [T, h] of the pass and, if a drafter reads layers, their features [T, ...], padding included."""
        metadata = prepared.metadata
        if self._graphs is None or isinstance(metadata, PrefillMetadata):
            return self._pass(prepared.batch, metadata, prepared.consumers)
        return self._graphs.run(tensors_of(prepared.batch, metadata))

    def _pass(
        self,
        batch: ForwardBatch,
        metadata: PrefillMetadata | DecodeMetadata,
        kept: ConsumerMetadata | None = None,
    ) -> Sequence[torch.Tensor]:
        memory: Any = self.model.paged_memory(self.pools, metadata, batch.positions)
        layers = () if self._drafter is None else self._drafter.target_layer_ids
        features = TargetFeatures(layers) if layers else None
        if kept is not None and isinstance(metadata, PrefillMetadata):
            consumers: Any = self.model.consumer_pass(self.pools, metadata, kept, batch)
            hidden = self.model.forward(batch, memory, features=features, consumers=consumers)
        else:
            hidden = self.model.forward(batch, memory, features=features)
        return (hidden,) if features is None else (hidden, features.joined())

    @staticmethod
    def _capture_blocks(drafter: CachedDrafter, backend: Backend, sizes: Sequence[int]) -> None:
        rows = torch.zeros(sizes[-1], dtype=torch.int32, device=backend.device)

        def captured(compute: RowWork) -> RowWork:
            graphs = RowGraphs(backend, sizes, (rows, rows, rows), compute, "draft blocks")
            return lambda inputs: graphs.run_padded(inputs, padding=(0, 0, 0))

        drafter.replace_blocks(captured)
