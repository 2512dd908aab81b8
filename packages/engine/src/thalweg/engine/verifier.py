"""Which drafts of a step hold, and the newest token of every sequence.

Letters: N sequences, T query tokens, G draft length, V vocabulary.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any

import torch

from thalweg.engine.device import Prepared
from thalweg.engine.draft_pool import DraftPool
from thalweg.engine.drawn_rows import DrawnRows, drawn_rows
from thalweg.engine.sampler import Draws, Sampler
from thalweg.engine.sampler_inputs import SamplerInputs
from thalweg.engine.upload import Uploader
from thalweg.kernels import Verification


@dataclass(frozen=True, slots=True)
class Verified:
    """What a step says about every sequence."""

    token_ids: torch.Tensor
    """int32 [N] newest token."""
    broken_rows: torch.Tensor
    """bool [N] sequences whose newest token is meaningless."""
    num_accepted: torch.Tensor
    """int32 [N]"""
    accepted_ids: torch.Tensor
    """int32 [N, G] accepted drafts, then -1."""
    accept_probs: torch.Tensor | None = None
    """float32 [N, G] of each draft, NaN where none was verified; None for a step without drafts."""


class Verifier:
    """Judges the drafts of decode steps: by rejection with a pool, by matching coupled draws without one.

    ops: bound kernel ops; `verify_drafts`, `match_drafts` and `argmax_lowest` are used. Of greedy requests a draft
    holds while it is the argmax, whatever the rule, and neither coin nor pool is looked at.
    """

    def __init__(self, ops: Any, upload: Uploader, sampler: Sampler, pool: DraftPool | None) -> None:
        self._ops = ops
        self._upload = upload
        self._sampler = sampler
        self._pool = pool

    def verify(self, prepared: Prepared, logits: torch.Tensor, inputs: SamplerInputs, draft_length: int) -> Verified:
        """Device work. logits: float32 [T, V] of every query token; overwritten."""
        if self._pool is None:
            draws = self._sampler.sample(logits, inputs)
            return _verified(prepared, draws.broken_rows, self._match(prepared, draws, draft_length))
        broken = self._sampler.clean(logits, inputs)
        best = Draws(self._ops.argmax_lowest(logits), broken)
        drawn = drawn_rows(self._upload, inputs, inputs.sequence_rows)
        if drawn is None:
            return _verified(prepared, broken, self._match(prepared, best, draft_length))
        return _verified(prepared, broken, self._judge(prepared, logits, best, inputs, drawn, self._pool))

    def _match(self, prepared: Prepared, draws: Draws, draft_length: int) -> Verification:
        verification: Verification = self._ops.match_drafts(
            draws.token_ids, prepared.batch.token_ids, prepared.query_lengths, draws.broken_rows, draft_length
        )
        return verification

    def _judge(
        self,
        prepared: Prepared,
        logits: torch.Tensor,
        best: Draws,
        inputs: SamplerInputs,
        drawn: DrawnRows,
        pool: DraftPool,
    ) -> Verification:
        verification: Verification = self._ops.verify_drafts(
            best.token_ids,
            prepared.batch.token_ids,
            prepared.query_lengths,
            best.broken_rows,
            self._ops.filtered_logprobs(drawn.part(logits), *drawn.filters),
            drawn.seeds,
            self._upload(inputs.row_positions()[drawn.host_rows]),
            pool.logprobs,
            self._upload(inputs.draft_read_slots),
            is_certain=pool.is_certain,
            drawn_rows=drawn.rows,
        )
        return verification


def _verified(prepared: Prepared, broken: torch.Tensor, verification: Verification) -> Verified:
    """What the verdicts on rows say about sequences. broken: bool [T]."""
    lengths = prepared.query_lengths.long()[:, None]
    places = torch.arange(verification.accepted_ids.shape[1], device=lengths.device)
    is_verified = places < lengths - 1
    rows = torch.where(is_verified, lengths.cumsum(0) - lengths + places, 0)
    return Verified(
        token_ids=verification.token_ids[verification.last_rows],
        broken_rows=broken[verification.last_rows],
        num_accepted=verification.num_accepted,
        accepted_ids=verification.accepted_ids,
        accept_probs=torch.where(is_verified, verification.accept_probs[rows], torch.nan),
    )
