"""Bringing a launched decode step up to date, once the result of the step before it is known.

The step was planned as if the one before it kept all its tokens; now the true lengths are there, and the drafts and the
anchor token that the device already has.
"""

from __future__ import annotations

import numpy as np
from numpy.typing import NDArray

from thalweg.interfaces import StepCorrection
from thalweg.scheduler.reference.plan import draft_rows
from thalweg.scheduler.reference.step import PlannedStep, Row, take_draft_info


def check_query_lengths(query_lengths: NDArray[np.int32], planned: PlannedStep, draft_length: int) -> None:
    """Raise ValueError unless these verify lengths spend exactly the tokens of the plan."""
    found, num_rows = np.asarray(query_lengths), len(planned.rows)
    if found.dtype != np.int32 or found.shape != (num_rows,):
        raise ValueError(f"query_lengths is {found.dtype} {found.shape}; this step needs int32 ({num_rows},)")
    for length in found.tolist():
        if not 1 <= length <= 1 + draft_length:
            raise ValueError(f"query_lengths contains {length}; each must be from 1 to {1 + draft_length}")
    if found.sum() != planned.num_batched_tokens:
        raise ValueError(f"query_lengths sum to {found.sum()}; step {planned.step} has {planned.num_batched_tokens}")


def correct_step(planned: PlannedStep, query_lengths: NDArray[np.int32] | None, draft_length: int) -> StepCorrection:
    """Correct every row in place; the lengths, if given, were checked."""
    for index, row in enumerate(planned.rows):
        if query_lengths is not None:
            row.query_length = int(query_lengths[index])
        _refresh(row)
    planned.is_corrected = True
    sequences = [row.sequence for row in planned.rows]
    return StepCorrection(
        query_lengths=np.array([row.query_length for row in planned.rows], np.int32),
        context_lengths=np.array([row.context_length for row in planned.rows], np.int32),
        committed_lengths=np.array([row.committed_length for row in planned.rows], np.int32),
        anchor_token_ids=np.array([sequence.token_ids[-1] for sequence in sequences], np.int32),
        draft_token_ids=draft_rows(sequences, draft_length),
        draft_read_slots=np.array([row.read_slot for row in planned.rows], np.int32),
        draft_write_slots=np.array([row.write_slot for row in planned.rows], np.int32),
        is_live=np.array([not sequence.is_finished for sequence in sequences], np.bool_),
    )


def _refresh(row: Row) -> None:
    sequence = row.sequence
    row.start = sequence.num_computed
    row.committed_length = sequence.length
    if row.previous_row < 0:
        # It took no part in the step before: nothing changed.
        return
    row.read_slot = take_draft_info(sequence)
    # A sequence that ended gave its slot back. This step still writes to it, before any new owner does.
    row.write_slot = sequence.draft_slot or row.write_slot
