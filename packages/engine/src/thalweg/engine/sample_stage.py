"""The device work after the model: draw, verify the drafts, propose the next ones, start the copies to the host.

It knows neither model nor cache. Letters: N sequences, T query tokens, S sampled rows, X siblings, G draft length,
V vocabulary.
"""

from __future__ import annotations

from dataclasses import replace
from typing import Any, Literal

import torch

from thalweg.engine.device import HostCopies, Prepared, Sampled
from thalweg.engine.draft_checks import CheckedDrafts, check_drafts
from thalweg.engine.draft_pool import DraftPool
from thalweg.engine.draft_sampler import DraftPositions, SeededDraftSampler
from thalweg.engine.prompt_logprobs import PromptLogprobs, RowLogits
from thalweg.engine.report_copies import ReportCopies
from thalweg.engine.row_faults import RowFaults
from thalweg.engine.row_reports import RowLogprobs
from thalweg.engine.sampler import Sampler
from thalweg.engine.sampler_inputs import SamplerInputs
from thalweg.engine.sampling_config import SamplingConfig
from thalweg.engine.step_report import StepReport
from thalweg.engine.token_counts import TokenCounts
from thalweg.engine.upload import Uploader
from thalweg.engine.verified import Verified, without_drafts
from thalweg.engine.verifier import Verifier
from thalweg.interfaces import Backend, Drafter, DraftRows, InvariantError

VerificationRule = Literal["rejection", "coupled"]
LogprobsMode = Literal["raw", "processed"]


class SampleStage:
    """Turns logits into tokens and drafts.

    ops: bound kernel ops. num_draft_slots, num_state_slots: slots of the scheduler, the null slots included. drafter:
    proposes the drafts of the next step; None = no drafts. verification, draft_positions: as in `SpeculationConfig`;
    rows without drafts are drawn by the same rule. sampling: what holds for every request. logprobs_mode: what is
    reported as log-probabilities, those of the model or those of the draws.
    """

    def __init__(
        self,
        backend: Backend,
        ops: Any,
        upload: Uploader,
        *,
        vocab_size: int,
        num_draft_slots: int = 1,
        num_state_slots: int = 1,
        drafter: Drafter | None = None,
        verification: VerificationRule = "rejection",
        draft_positions: DraftPositions = "per_step",
        sampling: SamplingConfig | None = None,
        logprobs_mode: LogprobsMode = "raw",
    ) -> None:
        self._ops = ops
        self._upload = upload
        self._vocab_size = vocab_size
        self._drafter = drafter
        self._draft_positions: DraftPositions = draft_positions
        self._sampling = SamplingConfig() if sampling is None else sampling
        self._is_raw = logprobs_mode == "raw"
        self._counts = TokenCounts(backend, ops, upload, num_state_slots, vocab_size)
        self._sampler = Sampler(
            ops,
            upload,
            counts=self._counts,
            blacklist=self._sampling.token_blacklist,
            force_top_k=self._sampling.force_top_k,
            is_coupled=verification == "coupled",
        )
        self._pool: DraftPool | None = None
        if drafter is not None and verification == "rejection":
            self._pool = DraftPool(backend, ops, num_draft_slots, drafter.draft_length, vocab_size)
        self._verifier = Verifier(ops, upload, self._sampler, self._pool, with_draws=self._sampling.return_draws)
        self._prompt_logprobs = PromptLogprobs(
            ops, upload, vocab_size, is_raw=self._is_raw, force_top_k=self._sampling.force_top_k
        )
        self._copies = ReportCopies(backend)

    def run(
        self, prepared: Prepared, logits: torch.Tensor, inputs: SamplerInputs, row_logits: RowLogits | None = None
    ) -> Sampled:
        """Queue the work of one step.

        logits: float32 [S, V]; may be overwritten. row_logits: of any query tokens, for log-probabilities of prompts.
        A device whose model is a table gives, for states int64 [T] after each query token,
        `lambda rows: table[states[rows]]`.
        """
        prompt_logprobs = self._of_prompts(inputs, row_logits)
        report = StepReport(
            self._ops, self._upload, inputs, is_raw=self._is_raw, with_draws=self._sampling.return_draws
        )
        report.see_model(logits)
        faults = self._sampler.clean(logits, inputs)
        report.see_draws(logits)
        if inputs.has_drafts:
            if self._drafter is None:
                raise InvariantError("the plan carries drafts, but there is no drafter")
            verified = self._verifier.verify(prepared, logits, faults, inputs, self._drafter.draft_length)
        else:
            verified = self._without_drafts(logits, faults, inputs)
        if inputs.penalties is not None:
            self._counts.count(inputs.penalties, verified.accepted_ids, verified.token_ids)
        drafts = self._propose(prepared, verified, inputs)
        return self._result(prepared, inputs, verified, drafts, report, prompt_logprobs)

    def _of_prompts(self, inputs: SamplerInputs, row_logits: RowLogits | None) -> RowLogprobs | None:
        if inputs.prompt is None:
            return None
        if row_logits is None:
            raise InvariantError("log-probabilities of a prompt are wanted, but its logits cannot be had")
        tokens = self._upload(inputs.prompt.token_ids)
        logprobs = self._prompt_logprobs.of(inputs.prompt, inputs.parameters, row_logits)
        return self._copies.logprobs(inputs.prompt.offsets, tokens, logprobs)

    def _without_drafts(self, logits: torch.Tensor, faults: RowFaults, inputs: SamplerInputs) -> Verified:
        """One draw per sequence and per sibling."""
        token_ids = self._sampler.draw(logits, inputs)
        forced = None if inputs.forced_ids is None else self._upload(inputs.forced_ids)
        if inputs.siblings.parents.size:
            parents = self._upload(inputs.siblings.parents)
            token_ids = torch.cat((token_ids, self._sampler.draw_siblings(logits, inputs)))
            faults = faults.then(faults.at(parents))
            forced = None if forced is None else torch.cat((forced, forced[parents]))
        if forced is not None:
            token_ids = torch.where(forced >= 0, forced, token_ids)
        return without_drafts(token_ids, faults, inputs.sequence_ids.size)

    def _propose(self, prepared: Prepared, verified: Verified, inputs: SamplerInputs) -> CheckedDrafts | None:
        """The next drafts; None where none are wanted."""
        drafter = self._drafter
        if drafter is None or not inputs.has_drafts:
            return None
        anchors = prepared.context_lengths - prepared.query_lengths + verified.num_accepted + 1
        sampler = SeededDraftSampler(
            self._ops,
            self._upload,
            inputs,
            anchors + 1,
            drafter.draft_length,
            rule=self._draft_positions,
            pool=self._pool,
            force_top_k=self._sampling.force_top_k,
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
        inputs: SamplerInputs,
        verified: Verified,
        drafts: CheckedDrafts | None,
        report: StepReport,
        prompt_logprobs: RowLogprobs | None,
    ) -> Sampled:
        siblings = verified.row_token_ids[inputs.sequence_rows.size :]
        nothing = verified.token_ids.new_empty((verified.token_ids.shape[0], 0))
        draft_ids, confidences = (
            (nothing, nothing.float()) if drafts is None else (drafts.token_ids, drafts.confidences)
        )
        copied: dict[str, torch.Tensor | None] = {
            "token_ids": verified.token_ids,
            "accepted_ids": verified.accepted_ids,
            "draft_ids": draft_ids,
            "confidences": confidences,
            "broken_rows": verified.faults.broken,
            "starved_rows": verified.faults.starved,
            "context_lengths": prepared.context_lengths,
            "accept_probs": verified.accept_probs,
            "draft_faults": None if drafts is None else drafts.faults,
            "sibling_ids": siblings if siblings.shape[0] else None,
        }
        host = HostCopies(
            **self._copies.together({name: tensor for name, tensor in copied.items() if tensor is not None}),
            logprobs=self._copies.of_tokens(report, verified),
            prompt_logprobs=prompt_logprobs,
            draws=self._copies.of_draws(report, verified),
        )
        return Sampled(verified.token_ids, verified.num_accepted, draft_ids, confidences, host)
