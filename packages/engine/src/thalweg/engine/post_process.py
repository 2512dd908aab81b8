"""From the outcome of a step to the outputs of its requests: text, stops, finish reasons, one final output each."""

from __future__ import annotations

import time
from collections.abc import Callable, Sequence
from dataclasses import dataclass

import numpy as np
from numpy.typing import NDArray

from thalweg.engine.outputs import OutputState
from thalweg.engine.requests import RequestState, RequestTable
from thalweg.interfaces import FinishReason, RequestOutput, SequenceStatus, StepOutcome, StepPlan

_CLOSED_ERRORS = {
    FinishReason.PROMPT_TOO_LONG: "the prompt does not fit into the cache or max_model_len",
    FinishReason.PREEMPTED: "the cache ran out of blocks and stop_preempted_request is on",
    FinishReason.STRUCTURED_FAILED: "the structured output failed",
    FinishReason.VISION_FAILED: "an image of the prompt could not be used",
}
_BROKEN = "the model produced logits that are not numbers, or everything was forbidden"


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
            found = self._table.by_sequence(sequence_id)
            if found is not None:
                found[1].num_preemptions += 1
        changed: dict[str, RequestState] = {}
        ended: list[OutputState] = []
        stopped: list[int] = []
        first_token_s: list[float] = []
        offsets = outcome.token_offsets.tolist()
        token_ids = outcome.token_ids.tolist()
        reasons = outcome.finish_reasons.tolist()
        for row, sequence_id in enumerate(plan.sequence_ids.tolist()):
            found = self._table.by_sequence(sequence_id)
            if found is None:
                continue
            request, output = found
            tokens = token_ids[offsets[row] : offsets[row + 1]]
            if not tokens and not reasons[row]:
                continue
            if broken_rows is not None and broken_rows[row] and len(tokens) == outcome.num_accepted[row]:
                _advance_to_broken(output, tokens[:-1])
            else:
                _advance(output, tokens, reasons[row])
            if request.first_token_s is None and output.token_ids:
                request.first_token_s = now
                first_token_s.append(now - request.arrival_s)
            if output.is_finished:
                ended.append(output)
                if not reasons[row]:
                    stopped.append(sequence_id)
            changed[request.request_id] = request
        for sequence_id, status in zip(outcome.closed_ids.tolist(), outcome.closed_reasons.tolist(), strict=True):
            found = self._table.by_sequence(sequence_id)
            if found is not None:
                request, output = found
                reason = FinishReason.from_status(SequenceStatus(status))
                output.finish(reason, error=_CLOSED_ERRORS.get(reason))
                ended.append(output)
                changed[request.request_id] = request
        outputs = [self._show(request, now) for request in changed.values()]
        for output in ended:
            self._table.forget_sequence(output)
        for request in changed.values():  # not before all of it went well, or an error would lose final outputs
            if request.is_finished:
                self._table.remove(request)
        return Processed(outputs, stopped, tuple(first_token_s))

    def end(
        self, requests: Sequence[RequestState], reason: FinishReason, error: str | None = None
    ) -> list[RequestOutput]:
        """End requests from outside a step (an abort, a failed engine) and return their final outputs.

        An output that had ended on its own, by then or when the step failed, keeps its reason.
        """
        now = self._clock()
        shown = []
        for request in requests:
            for output in request.unfinished:
                output.finish(reason, error=error)
            self._table.remove(request)
            shown.append(self._show(request, now))
        return shown

    def _show(self, request: RequestState, now: float) -> RequestOutput:
        if request.finished_s is None and request.is_finished:
            request.finished_s = now
        return request.show()


def _advance(output: OutputState, token_ids: Sequence[int], status: int) -> None:
    """Append the tokens of a row up to the first stop, then apply the scheduler's finish, if any."""
    for token_id in token_ids:
        if output.append(token_id):
            return
    if status:
        reason = FinishReason.from_status(SequenceStatus(status))
        output.finish(reason, error=_CLOSED_ERRORS.get(reason))


def _advance_to_broken(output: OutputState, token_ids: Sequence[int]) -> None:
    """Append the accepted tokens of a row whose newest one means nothing."""
    _advance(output, token_ids, 0)
    if not output.is_finished:
        output.finish(FinishReason.ERROR, error=_BROKEN)
