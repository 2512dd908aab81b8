"""The device work of a step with a real model: cache copies, inputs, forward pass, sampling, verification, drafting."""

from __future__ import annotations

from typing import Any

import torch

from thalweg.cache import CachePools, copy_blocks, copy_states, zero_states
from thalweg.engine.device import Forwarded, HostCopies, Prepared, Sampled
from thalweg.engine.inputs import StepInputs
from thalweg.engine.model_inputs import ModelInputs
from thalweg.engine.sampler import Draws, Sampler
from thalweg.engine.sampler_inputs import SamplerInputs
from thalweg.engine.upload import Uploader
from thalweg.interfaces import Backend, Drafter, InvariantError, StepPlan
from thalweg.model import Model


class ModelDevice:
    """Owns the model and the cache pools of one rank.

    ops: bound kernel ops; `match_drafts` is used. drafter: proposes the drafts of the next step; None = no drafts.
    """

    def __init__(
        self,
        backend: Backend,
        ops: Any,
        upload: Uploader,
        model: Model,
        pools: CachePools,
        inputs: ModelInputs,
        sampler: Sampler,
        drafter: Drafter | None = None,
    ) -> None:
        self._backend = backend
        self._ops = ops
        self._upload = upload
        self._model: Model | None = model
        self._pools: CachePools | None = pools
        self._inputs = inputs
        self._sampler = sampler
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
        """Run the model on the rows; logits of the selected ones."""
        batch = prepared.batch
        memory = self.model.paged_memory(self.pools, prepared.metadata, batch.positions)
        hidden = self.model.forward(batch, memory)
        selected = hidden if prepared.selected_rows is None else hidden[prepared.selected_rows]
        return Forwarded(prepared, self.model.logits(selected))

    def sample(self, forwarded: Forwarded, inputs: SamplerInputs) -> Sampled:
        """Draw, then verify drafts by matching and propose the next ones, unless there are none."""
        prepared = forwarded.prepared
        draws = self._sampler.sample(forwarded.logits, inputs)
        if inputs.has_drafts:
            if self._drafter is None:
                raise InvariantError("the plan carries drafts, but there is no drafter")
            return self._verify(draws, prepared, inputs, self._drafter)
        count = inputs.sequence_ids.size
        nothing = draws.token_ids.new_empty((count, 0))
        num_accepted = draws.token_ids.new_zeros((count,))
        no_confidence = nothing.to(torch.float32)
        return self._result(prepared, draws, num_accepted, nothing, nothing, no_confidence)

    def close(self) -> None:
        """Let go of weights and cache."""
        self._model = self._pools = None

    def _verify(self, draws: Draws, prepared: Prepared, inputs: SamplerInputs, drafter: Drafter) -> Sampled:
        verification = self._ops.match_drafts(
            draws.token_ids, prepared.batch.token_ids, prepared.query_lengths, draws.broken_rows, drafter.draft_length
        )
        last_rows, num_accepted = verification.last_rows, verification.num_accepted
        accepted_ids = verification.accepted_ids
        newest = Draws(draws.token_ids[last_rows], draws.broken_rows[last_rows])
        positions = prepared.context_lengths - prepared.query_lengths + num_accepted + 1
        draft_ids, confidences = drafter.propose(inputs.sequence_ids, positions, newest.token_ids)
        # A sequence that has just ended may be in the next step already; its drafts are not worth a row there.
        eos = self._upload(inputs.eos_token_ids)[:, None]
        has_ended = ((newest.token_ids[:, None] == eos) | (accepted_ids == eos).any(1, keepdim=True)) & (eos >= 0)
        confidences = confidences.masked_fill(has_ended, 0.0)
        return self._result(prepared, newest, num_accepted, accepted_ids, draft_ids, confidences)

    def _result(
        self,
        prepared: Prepared,
        newest: Draws,
        num_accepted: torch.Tensor,
        accepted_ids: torch.Tensor,
        draft_ids: torch.Tensor,
        confidences: torch.Tensor,
    ) -> Sampled:
        host = HostCopies(
            token_ids=self._to_host(newest.token_ids),
            accepted_ids=self._to_host(accepted_ids),
            draft_ids=self._to_host(draft_ids),
            confidences=self._to_host(confidences),
            broken_rows=self._to_host(newest.broken_rows),
            context_lengths=self._to_host(prepared.context_lengths),
        )
        return Sampled(newest.token_ids, num_accepted, draft_ids, confidences, host)

    def _to_host(self, tensor: torch.Tensor) -> torch.Tensor:
        copy: torch.Tensor = self._backend.copy_to_host(tensor)[0]
        return copy
