"""Post-processing: append the sampled tokens, stop what is done, attach the next drafts."""

from __future__ import annotations

import numpy as np
from numpy.typing import NDArray

from thalweg.interfaces import SequenceStatus, StepKind, StepOutcome, StepResult
from thalweg.scheduler.reference.plan import PlannedStep, Row
from thalweg.scheduler.reference.sequence import Sequence
from thalweg.scheduler.reference.state import State


def check_result(result: StepResult, planned: PlannedStep, draft_length: int) -> None:
    """Raise ValueError unless the result's arrays have the shape and dtype that this step's rows need."""
    num_rows = len(planned.rows)
    width = draft_length if planned.kind is StepKind.DECODE else 0
    _require("sampled_token_ids", result.sampled_token_ids, np.int32, (num_rows,))
    _require("accepted_token_ids", result.accepted_token_ids, np.int32, (num_rows, width))
    _require("draft_token_ids", result.draft_token_ids, np.int32, (num_rows, width))
    _require("confidences", result.confidences, np.float32, (num_rows, width), (num_rows, 0))
    if result.row_status is not None:
        _require("row_status", result.row_status, np.int8, (num_rows,))


def process_step(state: State, planned: PlannedStep, result: StepResult) -> StepOutcome:
    """Apply one checked result, row by row in plan order."""
    outcome = OutcomeBuilder(len(planned.rows), state.sizes.draft_length)
    is_prefill = planned.kind is StepKind.PREFILL
    verified = [None if is_prefill else row.sequence.draft_confidences for row in planned.rows]
    for index, row in enumerate(planned.rows):
        _attach_drafts(state, row, index, is_prefill, result)
    for index, row in enumerate(planned.rows):
        tokens = _advance(state, row, index, is_prefill, result)
        outcome.set_row(index, row.sequence, tokens)
        if tokens:
            verify_length = 1 if is_prefill else row.query_length
            num_accepted = 1 if is_prefill else len(_accepted(row, index, result)) + 1
            outcome.set_verification(index, verify_length, num_accepted, verified[index])
    for sequence in _owed_records(state, planned):
        outcome.close(sequence)
    return outcome.build()


def _attach_drafts(state: State, row: Row, index: int, is_prefill: bool, result: StepResult) -> None:
    """Count the step as processed and replace the drafts it verified by those for the next one."""
    sequence = row.sequence
    sequence.process_count += 1
    if sequence.is_finished or row.is_unfinished_chunk:
        return
    if is_prefill:
        # No drafter has run yet: the first decode verifies padding.
        sequence.draft_token_ids = [state.sizes.vocab_size - 1] * state.sizes.draft_length
        sequence.draft_confidences = None
        return
    sequence.draft_token_ids = result.draft_token_ids[index].tolist()
    known = result.confidences.shape[1] > 0
    sequence.draft_confidences = result.confidences[index].copy() if known else None
    assert not sequence.has_draft_info
    sequence.has_draft_info = state.sizes.draft_length > 0


def _advance(state: State, row: Row, index: int, is_prefill: bool, result: StepResult) -> list[int]:
    """Move one sequence to where the step left it; returns the tokens to report."""
    sequence = row.sequence
    if sequence.is_finished:
        # Aborted while the step ran. The next decode step takes it out of running.
        state.memory.draft_slots.give_back(sequence)
        if is_prefill:
            state.running.append(sequence)
        return []
    if result.row_status is not None:
        sequence.structured_status = int(result.row_status[index])
    if is_prefill:
        sequence.num_computed = row.context_length
        if row.is_unfinished_chunk:
            state.waiting.push_front(sequence)
            return []
        state.running.append(sequence)
    tokens = _append_tokens(state, row, index, is_prefill, result)
    if sequence.is_finished:
        state.memory.draft_slots.give_back(sequence)
    return tokens


def _append_tokens(state: State, row: Row, index: int, is_prefill: bool, result: StepResult) -> list[int]:
    sequence = row.sequence
    sampled = int(result.sampled_token_ids[index])
    if sequence.structured_status == -1:
        sequence.status = SequenceStatus.FINISHED_STRUCTURED_FAILED
        if state.is_default:
            return []
        sequence.token_ids.append(0)
        sequence.num_computed += 0 if is_prefill else 1
        return [sampled]
    accepted = [] if is_prefill else _accepted(row, index, result)
    appended = []
    for token in [*accepted, sampled]:
        sequence.append(token, state.config.max_model_len)
        appended.append(token)
        if sequence.is_finished:
            break
    if not is_prefill:
        # The cache entries of rejected drafts are overwritten by the next step.
        sequence.num_computed += len(appended)
    return appended


def _accepted(row: Row, index: int, result: StepResult) -> list[int]:
    """The accepted drafts: everything before the first -1."""
    drafts: list[int] = result.accepted_token_ids[index, : row.query_length - 1].tolist()
    return drafts[: drafts.index(-1)] if -1 in drafts else drafts


def _owed_records(state: State, planned: PlannedStep) -> list[Sequence]:
    """Requests that end with this step without a token of their own; everybody gets exactly one final record."""
    if not state.is_default:
        return planned.dropped
    return [sequence for sequence in [*planned.finished, *planned.dropped] if not sequence.has_final_record]


class OutcomeBuilder:
    """Collects what happened to the rows of a step."""

    def __init__(self, num_rows: int, draft_length: int) -> None:
        self._tokens: list[int] = []
        self._offsets = [0]
        self._num_output = np.zeros(num_rows, np.int32)
        self._reasons = np.zeros(num_rows, np.int8)
        self._num_verified = np.zeros(num_rows, np.int32)
        self._num_accepted = np.zeros(num_rows, np.int32)
        self._confidences = np.full((num_rows, draft_length), np.nan, np.float32)
        self._closed: list[Sequence] = []

    def set_row(self, index: int, sequence: Sequence, tokens: list[int]) -> None:
        self._tokens += tokens
        self._offsets.append(len(self._tokens))
        self._num_output[index] = sequence.num_output
        # A row found finished was ended by somebody else: its record is owed later.
        ended_here = tokens or sequence.status == SequenceStatus.FINISHED_STRUCTURED_FAILED
        if sequence.is_finished and ended_here and not sequence.has_final_record:
            self._reasons[index] = sequence.status
            sequence.has_final_record = True

    def set_verification(
        self, index: int, verify_length: int, num_accepted: int, confidences: NDArray[np.float32] | None
    ) -> None:
        self._num_verified[index] = verify_length
        self._num_accepted[index] = num_accepted
        if confidences is not None:
            self._confidences[index] = confidences

    def close(self, sequence: Sequence) -> None:
        sequence.has_final_record = True
        self._closed.append(sequence)

    def build(self) -> StepOutcome:
        return StepOutcome(
            token_offsets=np.array(self._offsets, np.int32),
            token_ids=np.array(self._tokens, np.int32),
            num_output_tokens=self._num_output,
            finish_reasons=self._reasons,
            num_verified=self._num_verified,
            num_accepted=self._num_accepted,
            verified_confidences=self._confidences,
            closed_ids=np.array([sequence.sequence_id for sequence in self._closed], np.int64),
            closed_reasons=np.array([sequence.status for sequence in self._closed], np.int8),
            closed_num_output_tokens=np.array([sequence.num_output for sequence in self._closed], np.int32),
            completed_ids=np.zeros(0, np.int64),
        )


def _require(name: str, array: object, dtype: type[np.generic], *shapes: tuple[int, ...]) -> None:
    if not isinstance(array, np.ndarray) or array.dtype != dtype or array.shape not in shapes:
        found = f"{array.dtype} {array.shape}" if isinstance(array, np.ndarray) else type(array).__name__
        wanted = " or ".join(str(shape) for shape in dict.fromkeys(shapes))
        raise ValueError(f"{name} is {found}; this step needs {np.dtype(dtype)} {wanted}")
