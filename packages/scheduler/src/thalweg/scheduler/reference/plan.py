"""The planned step: its rows as the scheduler remembers them, and the arrays it shows to the engine."""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import dataclass

import numpy as np
from numpy.typing import NDArray

from thalweg.interfaces import StepKind, StepPlan, StepStats
from thalweg.scheduler.config import Sizes
from thalweg.scheduler.reference.sequence import Sequence
from thalweg.scheduler.reference.state import State


@dataclass(slots=True)
class Row:
    """One sequence in one step, with the numbers it was planned with."""

    sequence: Sequence
    start: int
    """Position of its first query token."""
    query_length: int
    committed_length: int
    read_slot: int
    write_slot: int

    @property
    def context_length(self) -> int:
        return self.start + self.query_length

    @property
    def is_unfinished_chunk(self) -> bool:
        """A prefill row whose prompt goes on in a later step."""
        return self.context_length < self.committed_length


@dataclass(slots=True)
class PlannedStep:
    """What the scheduler keeps of a plan until its result arrives."""

    step: int
    kind: StepKind
    num_batched_tokens: int
    rows: list[Row]
    finished: list[Sequence]
    dropped: list[Sequence]
    restarted: list[Sequence]


def open_row(sequence: Sequence, query_length: int) -> Row:
    """Count the sequence into a step. Its draft information is read once, by the step planned next."""
    assert sequence.schedule_count == sequence.process_count
    sequence.schedule_count += 1
    read_slot = sequence.draft_slot if sequence.has_draft_info else 0
    sequence.has_draft_info = False
    return Row(sequence, sequence.num_computed, query_length, sequence.length, read_slot, sequence.draft_slot)


def build_plan(planned: PlannedStep, state: State) -> StepPlan:
    """Copy the step into arrays that nobody changes afterwards."""
    rows, sizes = planned.rows, state.sizes
    is_prefill = planned.kind is StepKind.PREFILL
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
        draft_token_ids=_drafts(sequences, is_prefill, sizes),
        draft_read_slots=_int32(row.read_slot for row in rows),
        draft_write_slots=_int32(row.write_slot for row in rows),
        previous_rows=np.full(len(rows), -1, np.int32),
        state_copies=np.zeros((0, 2), np.int32),
        block_copies=np.zeros((0, 2), np.int32),
        zero_state_slots=_int32(()),
        finished_ids=_ids(planned.finished),
        dropped_ids=_ids(planned.dropped),
        restarted_ids=_ids(planned.restarted),
        stats=_stats(rows, state),
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


def _drafts(sequences: list[Sequence], is_prefill: bool, sizes: Sizes) -> NDArray[np.int32]:
    if is_prefill:
        return np.zeros((len(sequences), 0), np.int32)
    drafts = np.full((len(sequences), sizes.draft_length), -1, np.int32)
    for row, sequence in zip(drafts, sequences, strict=True):
        row[: sequence.num_drafts] = sequence.draft_token_ids
    return drafts


def _stats(rows: list[Row], state: State) -> StepStats:
    """Numbers of the step and of the queues it leaves behind; the rows of a prefill stand in neither queue."""
    contexts = [row.context_length for row in rows]
    return StepStats(
        sum_query_times_context=sum(row.query_length * row.context_length for row in rows),
        max_context_length=max(contexts, default=0),
        min_context_length=min(contexts, default=0),
        attention_flops=0.0,
        total_flops=0.0,
        num_running=len(state.running),
        num_waiting=len(state.waiting),
        num_chunked=sum(1 for sequence in state.waiting if sequence.blocks),
        num_preempted=state.num_preempted,
        num_aborted=state.num_aborted,
        num_free_blocks=state.memory.blocks.num_free,
        num_free_state_slots=state.memory.state_slots.num_free,
    )
