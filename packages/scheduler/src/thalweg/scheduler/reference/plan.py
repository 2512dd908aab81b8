"""A planned step as the arrays that the engine is shown."""

from __future__ import annotations

from collections.abc import Iterable

import numpy as np
from numpy.typing import NDArray

from thalweg.interfaces import InvariantError, StepPlan
from thalweg.scheduler.reference.sequence import Sequence
from thalweg.scheduler.reference.state import State
from thalweg.scheduler.reference.statistics import step_stats
from thalweg.scheduler.reference.step import PlannedStep, Row


def build_plan(planned: PlannedStep, state: State) -> StepPlan:
    """Copy the step into arrays that nobody changes afterwards."""
    rows, sizes, is_prefill = planned.rows, state.sizes, planned.is_prefill
    _check_limits(planned, state)
    sequences = [row.sequence for row in rows]
    block_counts = [len(sequence.blocks) for sequence in sequences]
    return StepPlan(
        step=planned.step,
        kind=planned.kind,
        num_batched_tokens=planned.num_batched_tokens,
        sequence_ids=_ids(sequences),
        query_lengths=_int32(row.query_length for row in rows),
        context_lengths=_int32(row.context_length for row in rows),
        committed_lengths=_int32(row.committed_length for row in rows),
        prompt_lengths=_int32(sequence.prompt_length for sequence in sequences),
        block_offsets=np.cumsum([0, *block_counts], dtype=np.int32),
        block_ids=_int32(block_id for sequence in sequences for block_id in sequence.blocks),
        state_slots=_int32(sequence.state_slot for sequence in sequences),
        window_valid_start=np.zeros(len(rows), np.int32),
        tail_token_ids=_tails(rows, is_prefill, sizes.tail_length),
        token_ids=_int32(token for row in rows for token in _chunk(row)) if is_prefill else _int32(()),
        next_token_ids=_int32(_token_after(row) for row in rows) if is_prefill else _int32(()),
        draft_token_ids=draft_rows(sequences, 0 if is_prefill else sizes.draft_length),
        draft_read_slots=_int32(row.read_slot for row in rows),
        draft_write_slots=_int32(row.write_slot for row in rows),
        previous_rows=_int32(row.previous_row for row in rows),
        state_copies=_pairs(copies.state_slot for copies in planned.copies),
        block_copies=_pairs(copies.block for copies in planned.copies if copies.block),
        zero_state_slots=_int32(()),
        finished_ids=_ids(planned.finished),
        dropped_ids=_ids(planned.dropped),
        restarted_ids=_ids(planned.restarted),
        stats=step_stats(planned, state),
    )


def _int32(values: Iterable[int]) -> NDArray[np.int32]:
    return np.fromiter(values, np.int32)


def _ids(sequences: list[Sequence]) -> NDArray[np.int64]:
    return np.fromiter((sequence.sequence_id for sequence in sequences), np.int64, len(sequences))


def _chunk(row: Row) -> list[int]:
    return row.sequence.token_ids[row.start : row.context_length]


def _token_after(row: Row) -> int:
    return row.sequence.token_ids[row.context_length] if row.is_unfinished_chunk else -1


def _tails(rows: list[Row], is_prefill: bool, tail_length: int) -> NDArray[np.int32]:
    """The committed tokens that end at the row's first query token (prefill) or at its last token (decode)."""
    tails = np.full((len(rows), tail_length), -1, np.int32)
    for tail, row in zip(tails, rows, strict=True):
        end = row.start + 1 if is_prefill else row.committed_length
        tokens = row.sequence.token_ids[max(0, end - tail_length) : end]
        tail[tail_length - len(tokens) :] = tokens
    return tails


def draft_rows(sequences: list[Sequence], draft_length: int) -> NDArray[np.int32]:
    """[N, G] the attached drafts, -1 where there are none."""
    drafts = np.full((len(sequences), draft_length), -1, np.int32)
    for row, sequence in zip(drafts, sequences, strict=True):
        row[: sequence.num_drafts] = sequence.draft_token_ids[:draft_length]
    return drafts


def _pairs(copies: Iterable[tuple[int, int]]) -> NDArray[np.int32]:
    return np.array([*copies], np.int32).reshape(-1, 2)


def _check_limits(planned: PlannedStep, state: State) -> None:
    """Nothing planned may reach past the buffers, which have the size of these limits."""
    if planned.num_batched_tokens > state.sizes.max_num_batched_tokens:
        raise InvariantError(
            f"step {planned.step} has {planned.num_batched_tokens} tokens; at most "
            f"{state.sizes.max_num_batched_tokens} are allowed"
        )
    for row in planned.rows:
        end = row.context_length if planned.is_prefill else row.start + 1 + 2 * state.sizes.draft_length
        if end > state.runtime_length:
            raise InvariantError(
                f"sequence {row.sequence.sequence_id} of length {row.committed_length} reaches position {end} with "
                f"{row.query_length} query tokens from {row.start}; buffers end at {state.runtime_length}"
            )
