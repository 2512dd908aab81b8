"""The order of the calls that plan and process steps; a call out of order raises and changes nothing."""

from __future__ import annotations

from thalweg.interfaces import Ballot, StepKind, VoteRound
from thalweg.scheduler.reference.state import State
from thalweg.scheduler.reference.step import PlannedStep


class StepOrder:
    """What may come next, given the steps in flight and the one that is open."""

    def __init__(self, state: State) -> None:
        self._state = state
        self.next_step = 0
        self._ballot: Ballot | None = None
        """Of the open step: between begin_step and finish_step."""

    def check_begin(self) -> None:
        """At most one step may be in flight while the next one is planned, and only a decode step."""
        if self._ballot is not None:
            raise RuntimeError("begin_step: the step is open already; finish_step closes it")
        in_flight = self._state.in_flight
        is_ahead = self._state.config.plans_ahead and not any(step.is_prefill for step in in_flight)
        if len(in_flight) > (1 if is_ahead else 0):
            raise RuntimeError(f"begin_step: step {in_flight[0].step} has to be processed first")

    def open(self, ballot: Ballot) -> None:
        self._ballot = ballot

    def check_try_prefill(self) -> None:
        if self._ballot is None:
            raise RuntimeError("try_prefill: no step is open; begin_step opens it")
        may_be_won = self._ballot.round is not VoteRound.NONE and self._ballot.wants
        if self._ballot.round is not VoteRound.PREFILL and not may_be_won:
            raise RuntimeError("try_prefill: this step holds no vote, or this rank did not want a prefill")
        if self._state.prepared is not None:
            raise RuntimeError("try_prefill: this step has a prefill already")

    def check_finish(self, kind: StepKind) -> None:
        if kind not in (StepKind.PREFILL, StepKind.DECODE):
            raise ValueError(f"kind is {kind!r}; it must be a StepKind")
        if self._ballot is None:
            raise RuntimeError("finish_step: no step is open; begin_step opens it")
        if kind == StepKind.DECODE and self._state.prepared is not None:
            raise RuntimeError("finish_step: a prefill is prepared, the step cannot become a decode")
        if kind == StepKind.DECODE and self._state.is_prompt_engine:
            raise RuntimeError("finish_step: a prefill-only engine runs no decode steps")
        if kind == StepKind.PREFILL and self._state.is_completion_engine:
            raise RuntimeError("finish_step: a decode-only engine runs no prefill steps")

    def close(self, planned: PlannedStep) -> None:
        """The open step is committed and in flight now."""
        self._ballot = None
        self._state.in_flight.append(planned)
        self.next_step += 1

    def correctable(self, step: int) -> PlannedStep:
        """The step, if it is a decode step that alone is in flight and was not corrected yet."""
        in_flight = self._state.in_flight
        if not self._state.config.plans_ahead:
            raise RuntimeError("correct: without asynchronous scheduling plans are never out of date")
        if len(in_flight) != 1:
            raise RuntimeError("correct: the step to correct must be the only one unprocessed")
        (due,) = in_flight
        if due.step != step:
            raise RuntimeError(f"correct: step {due.step} is unprocessed, not step {step}")
        if due.is_prefill:
            raise RuntimeError("correct: a prefill step is never out of date")
        if due.is_corrected:
            raise RuntimeError("correct: the step was corrected already")
        return due

    def due(self, step: int) -> PlannedStep:
        """The step, if its result comes next. Raises ValueError: a result of another step is a bad argument."""
        in_flight = self._state.in_flight
        if not in_flight or in_flight[0].step != step:
            expected = f"step {in_flight[0].step} is due" if in_flight else "no step waits for a result"
            raise ValueError(f"the result is for step {step}; {expected}")
        return in_flight[0]
