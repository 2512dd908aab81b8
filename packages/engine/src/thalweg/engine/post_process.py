"""From the outcome of a step to the outputs of its requests: text, stops, finish reasons, one final output each."""

from __future__ import annotations

import time
from collections.abc import Callable, Sequence
from dataclasses import dataclass, field

from thalweg.engine.fan_out import Branch, Branching
from thalweg.engine.inflight import Collected
from thalweg.engine.output_reports import DrawReport, LogprobReport
from thalweg.engine.outputs import OutputState
from thalweg.engine.requests import RequestState, RequestTable
from thalweg.interfaces import FinishReason, InvariantError, RequestOutput, SequenceStatus, StepOutcome, StepPlan

_CLOSED_ERRORS = {
    FinishReason.PROMPT_TOO_LONG: "the prompt does not fit into the cache or max_model_len",
    FinishReason.PREEMPTED: "the cache ran out of blocks and stop_preempted_request is on",
    FinishReason.STRUCTURED_FAILED: "the structured output failed",
    FinishReason.VISION_FAILED: "an image of the prompt could not be used",
}
_BROKEN_ERROR = "the model produced logits that are not numbers, or every token was forbidden"
_STARVED_ERROR = "the grammar and the other options of the request leave no token"


@dataclass(frozen=True, slots=True)
class Processed:
    """What one step means for the users and for the scheduler."""

    outputs: list[RequestOutput]
    """Requests that changed, in row order; the last output of a request is final."""
    stopped_ids: list[int]
    """Sequences that the engine ended although the scheduler would go on: to be aborted there."""
    first_token_s: tuple[float, ...]
    """Time from arrival to first token, of the requests whose first token came with this step."""
    num_tokens: int
    """Added to outputs."""


class PostProcessor:
    """Applies step outcomes to the request table.

    An output leaves the table with its finish reason, and a request with its final output, so whatever the scheduler
    still reports about their sequences (tokens of a row in flight, the closing record of an abort) finds nobody and
    goes nowhere. has_draws: outputs say how their tokens were drawn.
    """

    def __init__(
        self, table: RequestTable, *, has_draws: bool = False, clock: Callable[[], float] = time.perf_counter
    ) -> None:
        self._table = table
        self._has_draws = has_draws
        self._clock = clock

    def process(
        self,
        plan: StepPlan,
        outcome: StepOutcome,
        collected: Collected,
        branchings: Sequence[Branching] = (),
        branches: Sequence[Branch] = (),
    ) -> Processed:
        """Apply one outcome.

        A row whose newest token is broken ends its output with an error, unless an accepted token before it ended it. A
        row whose grammar failed ends it without a token.
        branchings: shared sequences, of which the outcome is about the leaders. branches: other outputs of them.
        """
        step = _Step(collected, self._clock())
        for sequence_id in plan.restarted_ids.tolist():
            found = self._table.by_sequence(sequence_id)
            if found is not None:
                found[1].num_preemptions += 1
        self._take_rows(step, plan, outcome, {branching.row: branching.leader.sample for branching in branchings})
        for branch in branches:
            first = branch.first
            step.take(branch.request, first.output, first.sample, [first.token_id], branch.status)
        for sequence_id, status in zip(outcome.closed_ids.tolist(), outcome.closed_reasons.tolist(), strict=True):
            found = self._table.by_sequence(sequence_id)
            if found is not None:
                step.close(*found, status)
        outputs = [self._show(request, step.now_s) for request in step.changed.values()]
        # Not before all of it went well, or an error would lose final outputs.
        for output in step.ended:
            self._table.forget_sequence(output)
        for request in step.changed.values():
            if request.finished_s is not None:
                self._table.remove(request)
        return Processed(outputs, step.stopped_ids, tuple(step.first_token_s), step.num_tokens)

    def end(
        self, requests: Sequence[RequestState], reason: FinishReason, error: str | None = None
    ) -> list[RequestOutput]:
        """End requests from outside a step (an abort, a failed engine) and return their final outputs.

        An output that had ended on its own, by then or when the step failed, keeps its reason.
        """
        now_s = self._clock()
        shown = []
        for request in requests:
            for output in request.unfinished:
                output.finish(reason, error=error)
            self._table.remove(request)
            shown.append(self._show(request, now_s))
        return shown

    def _take_rows(self, step: _Step, plan: StepPlan, outcome: StepOutcome, samples: dict[int, int]) -> None:
        """samples: of the rows whose tokens are not those of the row with their number."""
        offsets = outcome.token_offsets.tolist()
        token_ids = outcome.token_ids.tolist()
        statuses = outcome.finish_reasons.tolist()
        num_accepted = outcome.num_accepted.tolist()
        failures = step.collected.grammar_failures
        for row, sequence_id in enumerate(plan.sequence_ids.tolist()):
            found = self._table.by_sequence(sequence_id)
            if found is None:
                continue
            request, output = found
            step.take_prompt(request, row)
            tokens = token_ids[offsets[row] : offsets[row + 1]]
            if statuses[row] and row in failures:
                step.close(request, output, statuses[row], failures[row])
            elif tokens:
                is_whole = len(tokens) == num_accepted[row]
                step.take(request, output, samples.get(row, row), tokens, statuses[row], is_whole=is_whole)
            elif statuses[row]:
                step.close(request, output, statuses[row])

    def _show(self, request: RequestState, now_s: float) -> RequestOutput:
        request.note_finish(now_s)
        return request.show(has_draws=self._has_draws)


@dataclass(slots=True)
class _Step:
    """What happens to the outputs in one step."""

    collected: Collected
    now_s: float
    changed: dict[str, RequestState] = field(default_factory=dict)
    ended: list[OutputState] = field(default_factory=list)
    stopped_ids: list[int] = field(default_factory=list)
    first_token_s: list[float] = field(default_factory=list)
    num_tokens: int = 0
    _logprobs: LogprobReport | None = None
    _prompt_logprobs: LogprobReport | None = None
    _draws: DrawReport | None = None

    def __post_init__(self) -> None:
        collected = self.collected
        self._logprobs = None if collected.logprobs is None else LogprobReport(collected.logprobs)
        self._prompt_logprobs = None if collected.prompt_logprobs is None else LogprobReport(collected.prompt_logprobs)
        self._draws = None if collected.draws is None else DrawReport(collected.draws)

    def take(
        self,
        request: RequestState,
        output: OutputState,
        sample: int,
        token_ids: Sequence[int],
        status: int,
        *,
        is_whole: bool = True,
    ) -> None:
        """Give an output its new tokens.

        sample: where the step reports them. status: how the scheduler ended it, 0 = not. is_whole: none was cut off.
        """
        is_broken = is_whole and bool(self.collected.broken_rows[sample])
        num_before = len(output.token_ids)
        if is_broken:
            _advance(output, token_ids[:-1], 0)
            if not output.is_finished:
                self._end_broken(output, sample)
        else:
            _advance(output, token_ids, status)
        self.num_tokens += len(output.token_ids) - num_before
        self._report(output, sample, output.token_ids[num_before:])
        if request.first_token_s is None and output.token_ids:
            request.first_token_s = self.now_s
            self.first_token_s.append(self.now_s - request.arrival_s)
        if output.is_finished:
            self.ended.append(output)
            if not status and output.sequence_id >= 0:
                self.stopped_ids.append(output.sequence_id)
        self.changed[request.request_id] = request

    def take_prompt(self, request: RequestState, row: int) -> None:
        """Give a request what the step says about its prompt."""
        wanted, reports = request.params.prompt_logprobs, self._prompt_logprobs
        if wanted is None or reports is None:
            return
        first = 1 + len(request.prompt_logprobs)
        targets = request.prompt_token_ids[first : first + reports.count(row)]
        request.prompt_logprobs += tuple(reports.take(row, targets, wanted))

    def close(self, request: RequestState, output: OutputState, status: int, error: str | None = None) -> None:
        """End an output without a token, and those that follow it. error: None = what its reason says."""
        reason = FinishReason.from_status(SequenceStatus(status))
        for each in (output, *output.followers):
            each.finish(reason, error=_CLOSED_ERRORS.get(reason) if error is None else error)
            self.ended.append(each)
        self.changed[request.request_id] = request

    def _end_broken(self, output: OutputState, sample: int) -> None:
        starved = self.collected.starved_rows
        if starved is not None and starved[sample]:
            output.finish(FinishReason.STRUCTURED_FAILED, error=_STARVED_ERROR)
        else:
            output.finish(FinishReason.ERROR, error=_BROKEN_ERROR)

    def _report(self, output: OutputState, sample: int, token_ids: Sequence[int]) -> None:
        wanted = output.params.logprobs
        if wanted is not None and token_ids:
            if self._logprobs is None:
                raise InvariantError(f"logprobs is {wanted}, and the step reported none")
            output.logprobs += self._logprobs.take(sample, token_ids, wanted)
        if self._draws is not None:
            output.draws += self._draws.take(sample, len(token_ids))


def _advance(output: OutputState, token_ids: Sequence[int], status: int) -> None:
    """Append the tokens of a row up to the first stop, then apply the scheduler's finish, if any."""
    for token_id in token_ids:
        if output.append(token_id):
            return
    if status:
        reason = FinishReason.from_status(SequenceStatus(status))
        output.finish(reason, error=_CLOSED_ERRORS.get(reason))
