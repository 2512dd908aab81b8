"""What is reported of drawn tokens: how likely they and their rivals were, and how they came about.

A step is followed from the logits of the model to its tokens, as they are known only when the logits are gone.
Letters: N sequences, S sampled rows, X siblings, P rows looked at, R reported tokens, K alternatives, V vocabulary.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from typing import Any, NamedTuple

import numpy as np
import torch
from numpy.typing import NDArray

from thalweg.engine.drawn_rows import filter_tensors
from thalweg.engine.sampler_inputs import SamplerInputs
from thalweg.engine.slabs import SIBLING_ELEMENTS, slabs
from thalweg.engine.upload import Uploader


class TokenLogprobs(NamedTuple):
    """Log-probabilities on the device; -inf for what may not be drawn, and for numbers that are none."""

    logprobs: torch.Tensor
    """float32 [R] of the tokens."""
    top_ids: torch.Tensor
    """int32 [R, K] the most likely tokens, from the most likely on, the lower id first among equals."""
    top_logprobs: torch.Tensor
    """float32 [R, K]"""


@dataclass(frozen=True, slots=True)
class ReportRows:
    """Which rows are looked at, and which tokens they tell about."""

    kept: NDArray[np.int64]
    """[P] sampled rows, ascending."""
    places: NDArray[np.int64] | None
    """[R] the kept row of each token; None = one after the other."""
    tokens: NDArray[np.int64]
    """[R] the tokens among all S + X, those of siblings last."""
    offsets: NDArray[np.int64]
    """[N+X+1] the tokens of sequence i, then of siblings, are offsets[i]:offsets[i+1]."""


def report_rows(inputs: SamplerInputs, is_asked: NDArray[np.bool_]) -> ReportRows:
    """The rows of sequences that are asked about, bool [N], and of their siblings."""
    parents = inputs.siblings.parents
    kept = np.flatnonzero(is_asked[inputs.sequence_rows])
    counts = np.concatenate((np.where(is_asked, inputs.num_rows, 0), is_asked[parents]))
    siblings = np.flatnonzero(is_asked[parents])
    places = None
    if siblings.size:
        shared = np.searchsorted(kept, inputs.first_rows[parents[siblings]])
        places = np.concatenate((np.arange(kept.size), shared))
    return ReportRows(
        kept,
        places,
        np.concatenate((kept, inputs.sequence_rows.size + siblings)),
        np.concatenate((np.zeros(1, np.int64), np.cumsum(counts))),
    )


class StepReport:
    """Looks at the logits of one step where they pass by.

    ops: bound kernel ops. is_raw: log-probabilities are the model's own, not those of the draws.
    """

    def __init__(self, ops: Any, upload: Uploader, inputs: SamplerInputs, *, is_raw: bool, with_draws: bool) -> None:
        self._ops = ops
        self._upload = upload
        self._inputs = inputs
        self._is_raw = is_raw
        num_logprobs = inputs.num_logprobs
        self._count = int(num_logprobs.max())
        self.rows: ReportRows | None = report_rows(inputs, num_logprobs >= 0) if self._count >= 0 else None
        """Of log-probabilities; None = nobody asked."""
        self.draw_rows: ReportRows | None = None
        """Of draws; None = they are not reported."""
        if with_draws:
            self.draw_rows = report_rows(inputs, np.ones(inputs.first_rows.size, np.bool_))
        self._kept: torch.Tensor | None = None
        self._drawn_from: torch.Tensor | None = None

    def see_model(self, logits: torch.Tensor) -> None:
        """logits: float32 [S, V] as the model gave them."""
        if self.rows is not None and self._is_raw:
            self._kept = self._ops.log_softmax(self._part(logits, self.rows))

    def see_draws(self, logits: torch.Tensor) -> None:
        """logits: float32 [S, V] as they are drawn from."""
        if self.draw_rows is not None:
            self._drawn_from = self._filtered(logits, self.draw_rows)
        if self.rows is None or self._is_raw:
            return
        known = self._drawn_from
        self._kept = self._filtered(logits, self.rows) if known is None else self._part(known, self.rows)

    def logprobs(self, token_ids: torch.Tensor) -> tuple[torch.Tensor, TokenLogprobs] | None:
        """Of tokens int32 [S+X] those that somebody asked about, int32 [R], and theirs; None if nobody did."""
        if self.rows is None or self._kept is None:
            return None
        tokens = token_ids[self._upload(self.rows.tokens)]
        own = self._of_tokens(self._ops.token_logprobs, self._kept, self.rows, tokens)
        top_ids, top_logprobs = _top(self._ops, self._kept, self._count)
        if self.rows.places is not None:
            places = self._upload(self.rows.places)
            top_ids, top_logprobs = top_ids[places], top_logprobs[places]
        return tokens, TokenLogprobs(_numbers(own), top_ids, top_logprobs)

    def sum_smaller_probs(self, token_ids: torch.Tensor) -> torch.Tensor | None:
        """float32 [S+X] of the tokens int32 [S+X]; None if draws are not reported."""
        if self.draw_rows is None or self._drawn_from is None:
            return None
        return self._of_tokens(self._ops.sum_smaller_probs, self._drawn_from, self.draw_rows, token_ids)

    def _part(self, values: torch.Tensor, rows: ReportRows) -> torch.Tensor:
        """[P, V] of [S, V]."""
        return values if rows.kept.size == values.shape[0] else values[self._upload(rows.kept)]

    def _filtered(self, logits: torch.Tensor, rows: ReportRows) -> torch.Tensor:
        parameters = self._inputs.parameters[self._inputs.sequence_rows[rows.kept]]
        logprobs: torch.Tensor = self._ops.filtered_logprobs(
            self._part(logits, rows), *filter_tensors(self._upload, parameters)
        )
        return logprobs

    def _of_tokens(
        self, op: Callable[..., torch.Tensor], kept: torch.Tensor, rows: ReportRows, token_ids: torch.Tensor
    ) -> torch.Tensor:
        """op, which treats every row by itself, of the distributions [P, V] of tokens [R]."""
        if rows.places is None:
            return op(kept, token_ids)
        parts = slabs(rows.places.size, kept.shape[1], SIBLING_ELEMENTS)
        return torch.cat([op(kept[self._upload(rows.places[part])], token_ids[part]) for part in parts])


def token_logprobs(ops: Any, logprobs: torch.Tensor, token_ids: torch.Tensor, count: int) -> TokenLogprobs:
    """Of tokens int [n] in distributions float32 [n, V], with so many alternatives."""
    return TokenLogprobs(_numbers(ops.token_logprobs(logprobs, token_ids)), *_top(ops, logprobs, count))


def _top(ops: Any, logprobs: torch.Tensor, count: int) -> tuple[torch.Tensor, torch.Tensor]:
    """(ids int32 [n, count], log-probabilities float32 [n, count]); without alternatives nothing is sorted."""
    if not count:
        empty = logprobs.new_empty((logprobs.shape[0], 0))
        return empty.int(), empty
    top_logprobs, top_ids = ops.top_logprobs(logprobs, count)
    return top_ids, _numbers(top_logprobs)


def _numbers(logprobs: torch.Tensor) -> torch.Tensor:
    return logprobs.nan_to_num(nan=-torch.inf, posinf=torch.inf, neginf=-torch.inf)
