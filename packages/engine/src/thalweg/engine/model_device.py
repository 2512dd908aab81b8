"""The device work of a step with a real model: cache copies, inputs, forward pass, sampling, verification, drafting."""

from __future__ import annotations

from thalweg.cache import CachePools, copy_blocks, copy_states, zero_states
from thalweg.engine.device import Forwarded, Prepared, Sampled
from thalweg.engine.inputs import StepInputs
from thalweg.engine.model_inputs import ModelInputs
from thalweg.engine.sample_stage import SampleStage
from thalweg.engine.sampler_inputs import SamplerInputs
from thalweg.interfaces import Drafter, InvariantError, StepPlan, TargetRows
from thalweg.model import Model, TargetFeatures


class ModelDevice:
    """Owns the model and the cache pools of one rank.

    drafter: sees the rows of every forward pass; None = nobody does. It proposes in the sample stage.
    """

    def __init__(
        self,
        model: Model,
        pools: CachePools,
        inputs: ModelInputs,
        stage: SampleStage,
        drafter: Drafter | None = None,
    ) -> None:
        self._model: Model | None = model
        self._pools: CachePools | None = pools
        self._inputs = inputs
        self._stage = stage
        self._drafter = drafter

    @property
    def model(self) -> Model:
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
        batch = prepared.batch
        memory = self.model.paged_memory(self.pools, prepared.metadata, batch.positions)
        layers = () if self._drafter is None else self._drafter.target_layer_ids
        features = TargetFeatures(layers) if layers else None
        hidden = self.model.forward(batch, memory, features=features)
        if self._drafter is not None:
            seen = None if features is None else features.joined()
            self._drafter.observe(TargetRows(seen, batch.positions, prepared.metadata.window_store_slots))
        selected = hidden if prepared.selected_rows is None else hidden[prepared.selected_rows]
        is_decode = prepared.selected_rows is None
        return Forwarded(prepared, self.model.logits(selected), None if is_decode else hidden)

    def sample(self, forwarded: Forwarded, inputs: SamplerInputs) -> Sampled:
        """Draw, verify drafts and propose the next ones."""
        hidden = forwarded.hidden
        row_logits = None if hidden is None else lambda rows: self.model.logits(hidden[rows])
        return self._stage.run(forwarded.prepared, forwarded.logits, inputs, row_logits)

    def close(self) -> None:
        """Let go of weights and cache."""
        self._model = self._pools = None
