"""The device work after the model: draw, verify the drafts, propose the next ones, start the copies to the host.

It knows neither model nor cache. Letters: N sequences, T query tokens, S sampled rows, G draft length, V vocabulary.
"""

from __future__ import annotations

from dataclasses import replace
from typing import Any, Literal

import torch

from thalweg.engine.device import HostCopies, Prepared, Sampled
from thalweg.engine.draft_checks import CheckedDrafts, check_drafts
from thalweg.engine.draft_pool import DraftPool
from thalweg.engine.draft_sampler import DraftPositions, SeededDraftSampler
from thalweg.engine.sampler import Draws, Sampler
from thalweg.engine.sampler_inputs import SamplerInputs
from thalweg.engine.upload import Uploader
from thalweg.engine.verifier import Verified, Verifier
from thalweg.interfaces import Backend, Drafter, DraftRows, InvariantError

VerificationRule = Literal["rejection", "coupled"]


class SampleStage:
    """Turns logits into tokens and drafts.

    ops: bound kernel ops. num_draft_slots: draft slots of the scheduler, the null slot included. drafter: proposes the
    drafts of the next step; None = no drafts. verification, draft_positions: as in `SpeculationConfig`; rows without
    drafts are drawn by the same rule.
    """

    def __init__(
        self,
        backend: Backend,
        ops: Any,
        upload: Uploader,
        *,
        vocab_size: int,
        num_draft_slots: int = 1,
        drafter: Drafter | None = None,
        verification: VerificationRule = "rejection",
        draft_positions: DraftPositions = "per_step",
    ) -> None:
        self._backend = backend
        self._ops = ops
        self._upload = upload
        self._vocab_size = vocab_size
        self._drafter = drafter
        self._draft_positions: DraftPositions = draft_positions
        self._sampler = Sampler(ops, upload, is_coupled=verification == "coupled")
        self._pool: DraftPool | None = None
        if drafter is not None and verification == "rejection":
            self._pool = DraftPool(backend, ops, num_draft_slots, drafter.draft_length, vocab_size)
        self._verifier = Verifier(ops, upload, self._sampler, self._pool)

    def run(self, prepared: Prepared, logits: torch.Tensor, inputs: SamplerInputs) -> Sampled:
        """Queue the work of one step. logits: float32 [S, V]; may be overwritten."""
        if not inputs.has_drafts:
            return self._without_drafts(prepared, self._sampler.sample(logits, inputs))
        if self._drafter is None:
            raise InvariantError("the plan carries drafts, but there is no drafter")
        verified = self._verifier.verify(prepared, logits, inputs, self._drafter.draft_length)
        drafts = self._propose(self._drafter, prepared, verified, inputs)
        return self._result(prepared, verified, drafts.token_ids, drafts.confidences, drafts.faults)

    def _without_drafts(self, prepared: Prepared, draws: Draws) -> Sampled:
        """One draw per sequence, and nothing proposed."""
        nothing = draws.token_ids.new_empty((draws.token_ids.shape[0], 0))
        verified = Verified(draws.token_ids, draws.broken_rows, torch.zeros_like(draws.token_ids), nothing)
        return self._result(prepared, verified, nothing, nothing.float())

    def _propose(
        self, drafter: Drafter, prepared: Prepared, verified: Verified, inputs: SamplerInputs
    ) -> CheckedDrafts:
        anchors = prepared.context_lengths - prepared.query_lengths + verified.num_accepted + 1
        sampler = SeededDraftSampler(
            self._ops,
            self._upload,
            inputs,
            anchors + 1,
            drafter.draft_length,
            rule=self._draft_positions,
            pool=self._pool,
        )
        rows = DraftRows(inputs.sequence_ids, verified.token_ids, anchors, prepared.state_slots)
        draft_ids, confidences = drafter.propose(rows, sampler)
        shape = (inputs.sequence_ids.size, drafter.draft_length)
        drafts = check_drafts(draft_ids, confidences, sampler.drawn, shape, self._vocab_size)
        sampler.keep(drafts.is_certain)
        return replace(drafts, confidences=self._unless_ended(drafts.confidences, verified, inputs))

    def _unless_ended(self, confidences: torch.Tensor, verified: Verified, inputs: SamplerInputs) -> torch.Tensor:
        """A sequence that has just ended may be in the next step already; its drafts are not worth a row there."""
        eos = self._upload(inputs.eos_token_ids)[:, None]
        emitted = torch.cat((verified.token_ids[:, None], verified.accepted_ids), dim=1)
        return confidences.masked_fill(((emitted == eos) & (eos >= 0)).any(1, keepdim=True), 0.0)

    def _result(
        self,
        prepared: Prepared,
        verified: Verified,
        draft_ids: torch.Tensor,
        confidences: torch.Tensor,
        faults: torch.Tensor | None = None,
    ) -> Sampled:
        host = HostCopies(
            token_ids=self._to_host(verified.token_ids),
            accepted_ids=self._to_host(verified.accepted_ids),
            draft_ids=self._to_host(draft_ids),
            confidences=self._to_host(confidences),
            broken_rows=self._to_host(verified.broken_rows),
            context_lengths=self._to_host(prepared.context_lengths),
            accept_probs=None if verified.accept_probs is None else self._to_host(verified.accept_probs),
            draft_faults=None if faults is None else self._to_host(faults),
        )
        return Sampled(verified.token_ids, verified.num_accepted, draft_ids, confidences, host)

    def _to_host(self, tensor: torch.Tensor) -> torch.Tensor:
        copy: torch.Tensor = self._backend.copy_to_host(tensor)[0]
        return copy
