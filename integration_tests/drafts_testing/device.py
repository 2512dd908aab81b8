"""A device whose model is a table: everything around the network is real, and a step takes milliseconds."""

from __future__ import annotations

import torch

from drafts_testing.tables import Contexts
from thalweg.engine.device import Forwarded, Prepared, Sampled
from thalweg.engine.inputs import StepInputs
from thalweg.engine.model_inputs import ModelInputs
from thalweg.engine.sample_stage import SampleStage
from thalweg.engine.sampler_inputs import SamplerInputs
from thalweg.interfaces import StepPlan


class TableDevice:
    """Satisfies `thalweg.engine.device.Device`: real inputs, real sampling, and logits by context."""

    def __init__(self, inputs: ModelInputs, contexts: Contexts, stage: SampleStage) -> None:
        self._inputs = inputs
        self._contexts = contexts
        self._stage = stage

    def copy(self, plan: StepPlan) -> None:
        self._contexts.copy(torch.from_numpy(plan.state_copies).long())

    def prepare(self, inputs: StepInputs, left: Sampled | None, *, redistribute: bool) -> Prepared:
        return self._inputs.prepare(inputs, left, redistribute=redistribute)

    def forward(self, prepared: Prepared) -> Forwarded:
        batch = prepared.batch
        rows = (prepared.state_slots, prepared.query_lengths, batch.positions, batch.token_ids)
        states = self._contexts.extend(*(each.cpu() for each in rows))
        selected = states if prepared.selected_rows is None else states[prepared.selected_rows.cpu()]
        logits = self._contexts.tables.after(selected).to(batch.positions.device)
        return Forwarded(prepared, logits, hidden=states)

    def sample(self, forwarded: Forwarded, inputs: SamplerInputs) -> Sampled:
        states = forwarded.hidden
        assert states is not None

        def logits_of(rows: torch.Tensor) -> torch.Tensor:
            return self._contexts.tables.after(states[rows.cpu()]).to(rows.device)

        return self._stage.run(forwarded.prepared, forwarded.logits, inputs, logits_of)

    def close(self) -> None:
        """Tables need no care."""
