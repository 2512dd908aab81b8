"""Which drafts of a step hold, and the newest token of every sequence.

Letters: N sequences, T query tokens, G draft length, V vocabulary.
"""

from __future__ import annotations

from typing import Any

import torch

from thalweg.engine.device import Prepared
from thalweg.engine.draft_pool import DraftPool
from thalweg.engine.drawn_rows import DrawnRows, drawn_rows
from thalweg.engine.row_faults import RowFaults
from thalweg.engine.sampler import Sampler
from thalweg.engine.sampler_inputs import SamplerInputs
from thalweg.engine.upload import Uploader
from thalweg.engine.verified import Verified, of_verification, verdicts_of_rows
from thalweg.kernels import Verification


class Verifier:
    """Judges the drafts of decode steps: by rejection with a pool, by matching coupled draws without one.

    ops: bound kernel ops. Of greedy requests a draft holds while it is the argmax, whatever the rule, and neither coin
    nor pool is looked at. Where a token is forced, a draft holds if it is that token. with_draws: how rows
    were drawn is reported.
    """

    def __init__(
        self, ops: Any, upload: Uploader, sampler: Sampler, pool: DraftPool | None, *, with_draws: bool = False
    ) -> None:
        self._with_draws = with_draws
        self._ops = ops
        self._upload = upload
        self._sampler = sampler
        self._pool = pool

    def verify(
        self, prepared: Prepared, logits: torch.Tensor, faults: RowFaults, inputs: SamplerInputs, draft_length: int
    ) -> Verified:
        """Device work. logits: float32 [T, V] of every query token, clean. faults: [T]."""
        broken = faults.broken
        verification = self._verification(prepared, logits, broken, inputs, draft_length)
        if inputs.forced_ids is not None:
            # A broken row must end its request, so no token is forced past it.
            forced = self._upload(inputs.forced_ids).masked_fill(broken, -1)
            verification = self._ops.force_tokens(verification, forced, prepared.token_ids, prepared.query_lengths)
        verdicts = None
        if self._with_draws:
            rows = self._upload(inputs.sequence_rows)
            verdicts = verdicts_of_rows(verification, prepared.query_lengths, rows)
        return of_verification(verification, faults, prepared.query_lengths, verdicts)

    def _verification(
        self, prepared: Prepared, logits: torch.Tensor, broken: torch.Tensor, inputs: SamplerInputs, draft_length: int
    ) -> Verification:
        pool = self._pool
        if pool is None:
            return self._match(prepared, self._sampler.draw(logits, inputs), broken, draft_length)
        best = self._ops.argmax_lowest(logits)
        drawn = drawn_rows(self._upload, inputs, inputs.sequence_rows, inputs.row_positions())
        if drawn is None:
            return self._match(prepared, best, broken, draft_length)
        return self._judge(pool, prepared, logits, best, broken, inputs, drawn)

    def _match(
        self, prepared: Prepared, token_ids: torch.Tensor, broken: torch.Tensor, draft_length: int
    ) -> Verification:
        verification: Verification = self._ops.match_drafts(
            token_ids, prepared.token_ids, prepared.query_lengths, broken, draft_length
        )
        return verification

    def _judge(
        self,
        pool: DraftPool,
        prepared: Prepared,
        logits: torch.Tensor,
        best: torch.Tensor,
        broken: torch.Tensor,
        inputs: SamplerInputs,
        drawn: DrawnRows,
    ) -> Verification:
        verification: Verification = self._ops.verify_drafts(
            best,
            prepared.token_ids,
            prepared.query_lengths,
            broken,
            self._ops.filtered_logprobs(drawn.part(logits), *drawn.filters),
            drawn.seeds,
            drawn.values,
            pool.logprobs,
            self._upload(inputs.draft_read_slots),
            is_certain=pool.is_certain,
            drawn_rows=drawn.rows,
        )
        return verification
