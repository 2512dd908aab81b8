"""The rows that a step samples, as the host knows them; what the options of requests are worked out from.

Letters: N sequences, S sampled rows (one per sequence of a prefill, one per query token of a decode step), G draft
length.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np
from numpy.typing import NDArray

from thalweg.engine.sampling_row import PARAMETERS, SequenceToSample
from thalweg.interfaces import StepCorrection, StepKind, StepPlan


@dataclass(frozen=True, slots=True)
class StepRows:
    """Rows of a plan, with the lengths that hold when it is sampled.

    Row j of a decode step follows the prompt, every output token so far, and the first j drafts of the step.
    """

    sequences: Sequence[SequenceToSample]
    parameters: NDArray[Any]
    """[N] records of `PARAMETERS`"""
    is_prefill: bool
    query_lengths: NDArray[np.int64]
    """[N] tokens of each sequence that went through the model."""
    context_lengths: NDArray[np.int64]
    """[N] tokens in the cache after the step."""
    num_rows: NDArray[np.int64]
    """[N] sampled rows of each sequence."""
    first_rows: NDArray[np.int64]
    """[N] the first of them."""
    num_outputs: NDArray[np.int64]
    """[N] output tokens before the step."""
    makes_output: NDArray[np.bool_]
    """[N] false for chunks that do not end their prompt: what they yield is dropped."""
    drafts: NDArray[np.int32]
    """[N, G] that the rows feed after the newest token; -1 = none."""
    state_slots: NDArray[np.int32]
    """[N]"""
    prompt_lengths: NDArray[np.int32]
    """[N]"""

    @staticmethod
    def of(plan: StepPlan, sequences: Sequence[SequenceToSample], correction: StepCorrection | None) -> StepRows:
        """sequences: in plan order. correction: of an asynchronous decode step, of which the plan knew too little."""
        lengths: StepPlan | StepCorrection = plan if correction is None else correction
        is_prefill = plan.kind is StepKind.PREFILL
        query_lengths = lengths.query_lengths.astype(np.int64)
        num_rows = np.ones_like(query_lengths) if is_prefill else query_lengths
        is_complete = lengths.context_lengths >= lengths.committed_lengths
        return StepRows(
            sequences=sequences,
            parameters=np.frombuffer(b"".join([sequence.row.packed for sequence in sequences]), PARAMETERS).copy(),
            is_prefill=is_prefill,
            query_lengths=query_lengths,
            context_lengths=lengths.context_lengths.astype(np.int64),
            num_rows=num_rows,
            first_rows=np.cumsum(num_rows) - num_rows,
            num_outputs=(lengths.committed_lengths - plan.prompt_lengths).astype(np.int64),
            makes_output=is_complete if is_prefill else np.ones(query_lengths.size, np.bool_),
            drafts=lengths.draft_token_ids,
            state_slots=plan.state_slots,
            prompt_lengths=plan.prompt_lengths,
        )

    @property
    def sequence_rows(self) -> NDArray[np.int64]:
        """[S] the sequence of each row."""
        return np.repeat(np.arange(self.num_rows.size), self.num_rows)

    def with_option(self, name: str) -> list[int]:
        """Sequences that make output and whose record says so."""
        return np.flatnonzero(self.parameters[name] & self.makes_output).tolist()

    def rows_of(self, index: int) -> NDArray[np.int64]:
        """The sampled rows of one sequence."""
        return np.arange(self.first_rows[index], self.first_rows[index] + self.num_rows[index])
