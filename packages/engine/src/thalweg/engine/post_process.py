"""From the outcome of a step to the outputs of its requests: text, stops, finish reasons, one final output each."""

from __future__ import annotations

import time
from collections.abc import Callable, Sequence
from dataclasses import dataclass

import numpy as np
from numpy.typing import NDArray

from thalweg.engine.requests import RequestState, RequestTable
from thalweg.interfaces import FinishReason, RequestOutput, SequenceStatus, StepOutcome, StepPlan

_CLOSED_ERRORS = {
    FinishReason.PROMPT_TOO_LONG: "the prompt does not fit into the cache or max_model_len",
    FinishReason.PREEMPTED: "the cache ran out of blocks and stop_preempted_request is on",
    FinishReason.STRUCTURED_FAILED: "the structured output failed",
    FinishReason.VISION_FAILED: "an image of the prompt could not be used",
}


@dataclass(frozen=True, slots=True)
class Processed:
    """What one step means for the users and for the scheduler."""

    outputs: list[RequestOutput]
    """Requests that changed, in row order; the last output of a request is final."""
    stopped_ids: list[int]
    """Sequences that the engine ended although the scheduler would go on: to be aborted there."""
    first_token_s: tuple[float, ...]
    """Time from arrival to first token, of the requests whose first token came with this step."""


class PostProcessor:
    """Applies step outcomes to the request table.

    A request leaves the table with its final output, so whatever the scheduler still reports about its sequence
    (tokens of a row in flight, the closing record of an abort) finds nobody and goes nowhere.
    """

    def __init__(self, table: RequestTable, clock: Callable[[], float] = time.perf_counter) -> None:
        self._table = table
        self._clock = clock

    def process(self, plan: StepPlan, outcome: StepOutcome, broken_rows: NDArray[np.bool_] | None = None) -> Processed:
        """Apply one outcome.

        broken_rows: bool [N], rows whose newest token came from logits that were not numbers. Their requests end with
        an error, unless an accepted token before it ended them. None = no such row.
        """
        now = self._clock()
        for sequence_id in plan.restarted_ids.tolist():
            state = self._table.by_sequence(sequence_id)
            if state is not None:
                state.num_preemptions += 1
        outputs: list[RequestOutput] = []
        ended: list[RequestState] = []
        stopped: list[int] = []
        first_token_s: list[float] = []
        offsets = outcome.token_offsets.tolist()
        token_ids = outcome.token_ids.tolist()
        reasons = outcome.finish_reasons.tolist()
        for row, sequence_id in enumerate(plan.sequence_ids.tolist()):
            state = self._table.by_sequence(sequence_id)
            if state is None:
                continue
            tokens = token_ids[offsets[row] : offsets[row + 1]]
            if not tokens and not reasons[row]:
                continue
            had_tokens = bool(state.token_ids)
            if broken_rows is not None and broken_rows[row] and len(tokens) == outcome.num_accepted[row]:
                _advance_to_broken(state, tokens[:-1], now)
            else:
                _advance(state, tokens, reasons[row], now)
            if state.first_token_s is not None and not had_tokens:
                first_token_s.append(state.first_token_s - state.arrival_s)
            if state.is_finished:
                ended.append(state)
                if not reasons[row]:
                    stopped.append(sequence_id)
            outputs.append(state.output())
        for sequence_id, status in zip(outcome.closed_ids.tolist(), outcome.closed_reasons.tolist(), strict=True):
            state = self._table.by_sequence(sequence_id)
            if state is not None:
                reason = FinishReason.from_status(SequenceStatus(status))
                state.finish(reason, now, error=_CLOSED_ERRORS.get(reason))
                ended.append(state)
                outputs.append(state.output())
        for state in ended:  # not before all of it went well, or an error would lose final outputs
            self._table.remove(state)
        return Processed(outputs, stopped, tuple(first_token_s))

    def end(
        self, states: Sequence[RequestState], reason: FinishReason, error: str | None = None
    ) -> list[RequestOutput]:
        """End requests from outside a step (an abort, a failed engine) and return their final outputs.

        One that had ended on its own when the step failed keeps its reason.
        """
        now = self._clock()
        outputs = []
        for state in states:
            if not state.is_finished:
                state.finish(reason, now, error=error)
            self._table.remove(state)
            outputs.append(state.output())
        return outputs


def _advance(state: RequestState, token_ids: Sequence[int], status: int, now: float) -> None:
    """Append the tokens of a row up to the first stop, then apply the scheduler's finish, if any."""
    for token_id in token_ids:
        if state.append(token_id, now):
            return
    if status:
        reason = FinishReason.from_status(SequenceStatus(status))
        state.finish(reason, now, error=_CLOSED_ERRORS.get(reason))


def _advance_to_broken(state: RequestState, token_ids: Sequence[int], now: float) -> None:
    """Append the accepted tokens of a row whose newest one means nothing."""
    _advance(state, token_ids, 0, now)
    if not state.is_finished:
        state.finish(FinishReason.ERROR, now, error="the model produced logits that are not numbers")
