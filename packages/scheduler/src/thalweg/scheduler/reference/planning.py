"""Committing a step: rows are counted in, and the plan's lists are fixed."""

from __future__ import annotations

from thalweg.interfaces import StepKind
from thalweg.scheduler.reference.decode import plan_decode
from thalweg.scheduler.reference.prefill import empty_prefill
from thalweg.scheduler.reference.sequence import Sequence
from thalweg.scheduler.reference.state import State
from thalweg.scheduler.reference.step import PlannedStep, open_row
from thalweg.scheduler.reference.verify import verify_lengths


def commit_prefill(state: State, step: int) -> PlannedStep:
    """The prepared prefill, or an empty one that follows the group."""
    batch = state.prepared or empty_prefill(state)
    state.prepared = None
    state.decode_step = 0
    reserved = 1 + state.sizes.draft_length
    return PlannedStep(
        step=step,
        kind=StepKind.PREFILL,
        num_batched_tokens=batch.num_batched_tokens,
        rows=[open_row(sequence, chunk, reserved) for sequence, chunk in batch.rows],
        dropped=batch.dropped,
        copies=state.memory.copies.list_for(step),
    )


def commit_decode(state: State, step: int) -> PlannedStep:
    """Plan a decode step. While another one is in flight, each row knows its place there."""
    batch = plan_decode(state)
    state.decode_step += 1
    reserved = 1 + state.sizes.draft_length
    lengths = verify_lengths(state, batch.rows)
    previous_rows = _rows_in_flight(state)
    return PlannedStep(
        step=step,
        kind=StepKind.DECODE,
        num_batched_tokens=sum(lengths),
        rows=[
            open_row(sequence, length, reserved, previous_rows.get(sequence, -1))
            for sequence, length in zip(batch.rows, lengths, strict=True)
        ],
        finished=batch.finished,
        dropped=batch.dropped,
        restarted=batch.restarted,
        copies=state.memory.copies.list_for(step),
    )


def _rows_in_flight(state: State) -> dict[Sequence, int]:
    return {row.sequence: index for step in state.in_flight for index, row in enumerate(step.rows)}
