"""Post-processing: append the sampled tokens, stop what is done, attach the next drafts."""

from __future__ import annotations

from thalweg.interfaces import InvariantError, SequenceStatus, StepOutcome, StepResult
from thalweg.scheduler.reference.outcome import OutcomeBuilder
from thalweg.scheduler.reference.sequence import Sequence
from thalweg.scheduler.reference.state import State
from thalweg.scheduler.reference.step import PlannedStep, Row, take_draft_info


def process_step(state: State, planned: PlannedStep, result: StepResult) -> StepOutcome:
    """Apply one checked result, row by row in plan order."""
    outcome = OutcomeBuilder(len(planned.rows), state.sizes.draft_length)
    verified = [None if planned.is_prefill else row.sequence.confidences for row in planned.rows]
    for index, row in enumerate(planned.rows):
        _attach_drafts(state, planned, row, index, result)
    for index, row in enumerate(planned.rows):
        tokens = _advance(state, planned, row, index, result)
        outcome.set_row(index, row.sequence, tokens)
        if tokens:
            verify_length = 1 if planned.is_prefill else row.query_length
            num_accepted = 1 if planned.is_prefill else len(_accepted(row, index, result)) + 1
            outcome.set_verification(index, verify_length, num_accepted, verified[index])
    if planned.is_prefill:
        _requeue(state, planned, outcome)
    for sequence in _owed_records(state, planned):
        outcome.close(sequence)
    return outcome.build()


def _attach_drafts(state: State, planned: PlannedStep, row: Row, index: int, result: StepResult) -> None:
    """Count the step as processed and replace the drafts it verified by those for the next one."""
    sequence = row.sequence
    if planned.is_preempted(row):
        return
    sequence.process_count += 1
    if sequence.is_finished:
        return
    if planned.is_prefill:
        if not row.is_unfinished_chunk and not state.is_prompt_engine:
            sequence.attach_drafts(state.padding_drafts, None)
        return
    if row.previous_row >= 0 and not planned.is_corrected:
        # Nobody asked for the correction, with which the step would have read what the one before wrote.
        take_draft_info(sequence)
    known = result.confidences.shape[1] > 0
    sequence.attach_drafts(result.draft_token_ids[index].tolist(), result.confidences[index].copy() if known else None)
    if sequence.has_draft_info:
        raise InvariantError(f"drafts of sequence {sequence.sequence_id} were published twice and never read")
    sequence.has_draft_info = state.sizes.draft_length > 0


def _advance(state: State, planned: PlannedStep, row: Row, index: int, result: StepResult) -> list[int]:
    """Move one sequence to where the step left it; returns the tokens to report."""
    sequence = row.sequence
    if planned.is_preempted(row):
        return []
    sequence.settle()
    if sequence.is_finished:
        # It ended while the step ran. The next decode step takes it out of running.
        state.memory.draft_slots.give_back(sequence)
        return []
    if result.row_status is not None:
        sequence.structured_status = int(result.row_status[index])
    if planned.is_prefill:
        sequence.num_computed = row.context_length
        if row.is_unfinished_chunk:
            return []
    tokens = _append_tokens(state, planned, row, index, result)
    if sequence.is_finished:
        state.memory.draft_slots.give_back(sequence)
    return tokens


def _append_tokens(state: State, planned: PlannedStep, row: Row, index: int, result: StepResult) -> list[int]:
    sequence = row.sequence
    sampled = int(result.sampled_token_ids[index])
    if sequence.structured_status == -1:
        sequence.status = SequenceStatus.FINISHED_STRUCTURED_FAILED
        if state.is_default:
            return []
        sequence.token_ids.append(0)
        sequence.num_computed += 0 if planned.is_prefill else 1
        return [sampled]
    accepted = [] if planned.is_prefill else _accepted(row, index, result)
    appended = []
    for token in [*accepted, sampled]:
        sequence.append(token, state.config.max_model_len)
        appended.append(token)
        if sequence.is_finished:
            break
    if not planned.is_prefill:
        # The cache entries of rejected drafts are overwritten by the next step.
        sequence.num_computed += len(appended)
    return appended


def _accepted(row: Row, index: int, result: StepResult) -> list[int]:
    """The accepted drafts: everything before the first -1."""
    drafts: list[int] = result.accepted_token_ids[index, : row.query_length - 1].tolist()
    return drafts[: drafts.index(-1)] if -1 in drafts else drafts


def _requeue(state: State, planned: PlannedStep, outcome: OutcomeBuilder) -> None:
    """The rows of a prefill stood in no queue: unfinished chunks wait again, everybody else runs."""
    chunks = []
    for row in planned.rows:
        sequence = row.sequence
        if row.is_unfinished_chunk and not sequence.is_finished:
            chunks.append(sequence)
            continue
        state.running.append(sequence)
        if state.is_prompt_engine and not (state.is_default and sequence.is_finished):
            outcome.complete(sequence)
    # Pushed to the front one by one, they keep their order when the last goes first.
    for sequence in reversed(chunks) if state.is_default else chunks:
        state.waiting.push_front(sequence)


def _owed_records(state: State, planned: PlannedStep) -> list[Sequence]:
    """Requests that end with this step without a token of their own; everybody gets exactly one final record."""
    if not state.is_default:
        return planned.dropped
    return [sequence for sequence in [*planned.finished, *planned.dropped] if not sequence.has_final_record]
