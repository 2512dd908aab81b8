"""What a step leaves on the device, and the contract of what computes it.

Letters: N sequences, T query tokens, S sampled rows, X siblings, G draft length, V vocabulary.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import Protocol

import torch

from thalweg.engine.inputs import StepInputs
from thalweg.engine.row_reports import RowDraws, RowLogprobs
from thalweg.engine.sampler_inputs import SamplerInputs
from thalweg.interfaces import StepPlan
from thalweg.model.metadata import ConsumerMetadata, DecodeMetadata, ForwardBatch, PrefillMetadata


@dataclass(frozen=True, slots=True)
class Prepared:
    """The inputs of a forward pass, complete on the device."""

    batch: ForwardBatch
    metadata: PrefillMetadata | DecodeMetadata
    query_lengths: torch.Tensor
    """int32 [N]"""
    context_lengths: torch.Tensor
    """int32 [N] tokens in the cache after the step, every draft included."""
    state_slots: torch.Tensor
    """int32 [N]"""
    selected_rows: torch.Tensor | None
    """int64 [S] rows that the model returns whose logits are needed; None = all."""
    host_query_lengths: torch.Tensor | None = None
    """int32 [N] copy of redistributed lengths for the host, on its way."""
    num_padding: int = 0
    """Rows at the end of `batch` and `metadata` that belong to no sequence of the step."""
    consumers: ConsumerMetadata | None = None
    """Of a prefill under bounded replay: the rows that the last layers run over, and that the model returns."""

    @property
    def token_ids(self) -> torch.Tensor:
        """int64 [T] of the rows without those."""
        return self.batch.token_ids[: self.batch.token_ids.shape[0] - self.num_padding]


@dataclass(frozen=True, slots=True)
class Forwarded:
    """What the model made of a step."""

    prepared: Prepared
    logits: torch.Tensor
    """float32 [S, V]"""
    hidden: torch.Tensor | None = None
    """[T, ...] of a prefill: what the logits of every query token can be made from, for log-probabilities of prompts. A
    device whose model is a table keeps the state after each token here."""


@dataclass(frozen=True, slots=True)
class HostCopies:
    """Results on their way to the host; valid once the step's last event has passed."""

    token_ids: torch.Tensor
    """int32 [N] newest token of each row."""
    accepted_ids: torch.Tensor
    """int32 [N, G] accepted drafts, then -1."""
    draft_ids: torch.Tensor
    """int32 [N, G] for the next step."""
    confidences: torch.Tensor
    """float32 [N, G] of those."""
    broken_rows: torch.Tensor
    """bool [N+X]"""
    context_lengths: torch.Tensor
    """int32 [N]"""
    accept_probs: torch.Tensor | None = None
    """float32 [N, G] how likely each draft of this step was to be accepted; NaN where none was verified."""
    draft_faults: torch.Tensor | None = None
    """int32 [2] what the drafter got wrong: unusable ids, confidences outside 0..1. None: it was not asked."""
    sibling_ids: torch.Tensor | None = None
    """int32 [X] first tokens of the siblings; None = there are none."""
    logprobs: RowLogprobs | None = None
    """Of output tokens; None = nobody asked."""
    prompt_logprobs: RowLogprobs | None = None
    """Of prompt tokens; None = nobody asked."""
    draws: RowDraws | None = None
    """None = they are not reported."""
    starved_rows: torch.Tensor | None = None
    """bool [N+X] of the broken ones those that their grammar left no token; None = no output has a grammar."""


@dataclass(frozen=True, slots=True)
class Sampled:
    """What the next step takes over without the host's help."""

    token_ids: torch.Tensor
    """int32 [N] newest token of each row, a valid id even where the row is broken."""
    num_accepted: torch.Tensor
    """int32 [N] drafts accepted."""
    draft_ids: torch.Tensor
    """int32 [N, G] valid ids."""
    confidences: torch.Tensor
    """float32 [N, G] from 0 to 1, 0 where the sequence has just ended."""
    host: HostCopies

    @property
    def for_next_step(self) -> tuple[torch.Tensor, torch.Tensor, torch.Tensor]:
        """(token_ids, draft_ids, num_accepted)"""
        return self.token_ids, self.draft_ids, self.num_accepted


class Device(Protocol):
    """The work of a step. Every method runs in stream order and must not wait for the host or read from the device."""

    def copy(self, plan: StepPlan) -> None:
        """Copy and clear cache memory as the plan says."""

    def prepare(self, inputs: StepInputs, left: Sampled | None, *, redistribute: bool) -> Prepared:
        """Complete the inputs of a step with what the step before left behind; None: the host knew everything.

        redistribute: share the verify lengths out anew, by the confidences that were left.
        """

    def forward(self, prepared: Prepared) -> Forwarded:
        """Run the model."""

    def sample(self, forwarded: Forwarded, inputs: SamplerInputs) -> Sampled:
        """Draw, verify the drafts, propose the next ones, and start the copies to the host."""

    def close(self) -> None:
        """Let go of weights and cache."""
