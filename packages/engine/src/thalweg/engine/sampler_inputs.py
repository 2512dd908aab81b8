"""What the sampler needs to know about the rows of a step, in numpy.

Letters: N sequences, S sampled rows (one per sequence of a prefill, one per query token of a decode step).
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

import numpy as np
from numpy.typing import NDArray

from thalweg.engine.sampling_row import SamplingRow, SequenceToSample
from thalweg.interfaces import StepCorrection, StepKind, StepPlan
from thalweg.kernels.reference.filters import GREEDY_BELOW

ROW_POSITION_STRIDE = 10000019
"""Later rows of a step use random streams far from those of any first row, unless draws are coupled."""


@dataclass(frozen=True, slots=True)
class SamplerInputs:
    """Rows to sample and the parameters of their sequences."""

    sequence_ids: NDArray[np.int64]
    """[N]"""
    has_drafts: bool
    """Whether rows after the first of a sequence judge drafts, and new ones are wanted."""
    sequence_rows: NDArray[np.int64]
    """[S] the sequence of each sampled row."""
    first_rows: NDArray[np.int64]
    """[N] first sampled row of each sequence."""
    temperatures: NDArray[np.float32]
    """[N]"""
    top_ps: NDArray[np.float32]
    """[N]"""
    top_ks: NDArray[np.int32]
    """[N] -1 = all."""
    min_ps: NDArray[np.float32]
    """[N] 0 = off."""
    seeds: NDArray[np.uint64]
    """[N]"""
    sample_positions: NDArray[np.int64]
    """[N] absolute index of the token that the sequence's first sampled row generates."""
    eos_token_ids: NDArray[np.int32]
    """[N] -1 = ignored."""
    forbidden_rows: NDArray[np.int64]
    """[F] sampled rows of the (row, token) pairs that must not be drawn."""
    forbidden_ids: NDArray[np.int64]
    """[F] token ids of those pairs."""
    draft_read_slots: NDArray[np.int32]
    """[N] where the distributions of the drafts under judgement are kept; 0 = they have none."""
    draft_write_slots: NDArray[np.int32]
    """[N] where those of the next drafts go; 0 = nowhere."""

    @property
    def is_greedy(self) -> NDArray[np.bool_]:
        """[N] sequences that take the argmax."""
        greedy: NDArray[np.bool_] = self.temperatures < GREEDY_BELOW
        return greedy

    def row_positions(self, stride: int = ROW_POSITION_STRIDE) -> NDArray[np.int64]:
        """[S] position of each sampled row in its sequence's random stream; `stride` lies between rows."""
        steps = np.arange(self.sequence_rows.size) - self.first_rows[self.sequence_rows]
        positions: NDArray[np.int64] = self.sample_positions[self.sequence_rows] + stride * steps
        return positions


def build_sampler_inputs(
    plan: StepPlan, sequences: Sequence[SequenceToSample], correction: StepCorrection | None = None
) -> SamplerInputs:
    """Sampler inputs of a plan; `sequences` are its rows in plan order.

    correction: replaces the lengths of an asynchronous decode step, which the plan could only guess. Every chunk of a
    prefill samples its last row; what a chunk that does not end its prompt yields is dropped later.
    """
    rows = [sequence.row for sequence in sequences]
    lengths = plan if correction is None else correction
    counts = lengths.query_lengths.astype(np.int64)
    contexts = lengths.context_lengths.astype(np.int64)
    num_sequences = counts.size
    is_prefill = plan.kind is StepKind.PREFILL
    num_sampled = np.ones_like(counts) if is_prefill else counts
    first_rows = np.cumsum(num_sampled) - num_sampled
    makes_output = contexts >= lengths.committed_lengths if is_prefill else np.ones(num_sequences, np.bool_)
    forbidden_rows, forbidden_ids = _forbidden_pairs(
        rows, first_rows, num_sampled, lengths.committed_lengths - plan.prompt_lengths, makes_output
    )
    return SamplerInputs(
        sequence_ids=plan.sequence_ids,
        has_drafts=plan.draft_token_ids.shape[1] > 0,
        sequence_rows=np.repeat(np.arange(num_sequences), num_sampled),
        first_rows=first_rows,
        temperatures=np.array([row.temperature for row in rows], np.float32),
        top_ps=np.array([row.top_p for row in rows], np.float32),
        top_ks=np.array([row.top_k for row in rows], np.int32),
        min_ps=np.array([row.min_p for row in rows], np.float32),
        seeds=np.array([row.seed for row in rows], np.uint64),
        sample_positions=contexts if is_prefill else contexts - counts + 1,
        eos_token_ids=np.array([row.eos_token_id for row in rows], np.int32),
        forbidden_rows=forbidden_rows,
        forbidden_ids=forbidden_ids,
        draft_read_slots=lengths.draft_read_slots,
        draft_write_slots=lengths.draft_write_slots,
    )


def _forbidden_pairs(
    rows: Sequence[SamplingRow],
    first_rows: NDArray[np.int64],
    num_rows: NDArray[np.int64],
    num_output_tokens: NDArray[np.int32],
    makes_output: NDArray[np.bool_],
) -> tuple[NDArray[np.int64], NDArray[np.int64]]:
    """(sampled row, token) pairs of sequences that may not end yet: row j generates output token `out + j`."""
    pair_rows: list[NDArray[np.int64]] = []
    pair_ids: list[NDArray[np.int64]] = []
    for index, row in enumerate(rows):
        count = min(int(num_rows[index]), row.min_tokens - int(num_output_tokens[index]))
        if count > 0 and makes_output[index]:
            protected = np.arange(first_rows[index], first_rows[index] + count)
            pair_rows.append(np.repeat(protected, row.forbidden_ids.size))
            pair_ids.append(np.tile(row.forbidden_ids, count))
    if not pair_rows:
        return np.zeros(0, np.int64), np.zeros(0, np.int64)
    return np.concatenate(pair_rows), np.concatenate(pair_ids)
