"""Runs the model on step plans: cache copies, inputs, forward pass, sampling."""

from __future__ import annotations

import time
from collections.abc import Sequence
from typing import Any

import numpy as np
import torch

from thalweg.cache import CachePools, copy_blocks, copy_states, zero_states
from thalweg.engine.inflight import Forwarded
from thalweg.engine.inputs import InputBuilder
from thalweg.engine.requests import SamplingRow
from thalweg.engine.sampler import Sampled, Sampler
from thalweg.interfaces import InvariantError, StepPlan
from thalweg.model import Model


class ModelRunner:
    """Owns the model and the cache pools of one rank. An idle plan (no rows) runs no forward pass."""

    def __init__(self, model: Model, pools: CachePools, inputs: InputBuilder, sampler: Sampler) -> None:
        self._model: Model | None = model
        self._pools: CachePools | None = pools
        self._inputs = inputs
        self._sampler = sampler

    @property
    def pools(self) -> CachePools:
        """The cache. Raises InvariantError after `close`."""
        if self._pools is None:
            raise InvariantError("the runner is closed")
        return self._pools

    def run(self, plan: StepPlan, sampling: Sequence[SamplingRow]) -> Forwarded:
        """Copy and clear cache memory as the plan says, then forward and sample; one token per row."""
        with torch.inference_mode():
            self._copy(plan)
            if not plan.sequence_ids.size:
                return Forwarded(Sampled(np.zeros(0, np.int32), np.zeros(0, np.bool_)), 0.0)
            inputs = self._inputs.build(plan, sampling)
            selected = torch.from_numpy(inputs.sampler.selected_rows)
            started = time.perf_counter()
            logits = self._forward(inputs.batch, inputs.metadata, selected)
            forward_s = time.perf_counter() - started
            return Forwarded(self._sampler.sample(logits, inputs.sampler), forward_s)

    def close(self) -> None:
        """Let go of weights and cache."""
        self._model = self._pools = None

    def _forward(self, batch: Any, metadata: Any, selected: torch.Tensor) -> torch.Tensor:
        if self._model is None:
            raise InvariantError("the runner is closed")
        memory = self._model.paged_memory(self.pools, metadata, batch.positions)
        hidden = self._model.forward(batch, memory)
        return self._model.logits(hidden[selected.to(hidden.device)])

    def _copy(self, plan: StepPlan) -> None:
        if plan.state_copies.size:
            copy_states(self.pools.states, plan.state_copies)
        if plan.block_copies.size:
            copy_blocks(self.pools.blocks, plan.block_copies)
        if plan.zero_state_slots.size:
            zero_states(self.pools.states, plan.zero_state_slots)
