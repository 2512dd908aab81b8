"""The step loop: requests in, one scheduled forward pass per step, outputs out."""

from __future__ import annotations

import logging
import time
from collections.abc import Callable, Mapping, Sequence
from contextlib import AbstractContextManager, ExitStack
from typing import Any, Self

from thalweg.dspark import StepTimeCurve
from thalweg.engine.admission import Admission
from thalweg.engine.fan_out import FanOut
from thalweg.engine.grammars import Grammars
from thalweg.engine.inflight import Collected, InflightStep, Runner
from thalweg.engine.instruments import Instruments
from thalweg.engine.post_process import PostProcessor
from thalweg.engine.requests import RequestTable
from thalweg.engine.statistics import StepRecord, StepStatistics
from thalweg.engine.step_time_curve import size_on_curve
from thalweg.engine.timeline import NullTimeline, Timeline
from thalweg.engine.tokenizer import Tokenizer
from thalweg.interfaces import (
    Communicator,
    FinishReason,
    RequestError,
    RequestOutput,
    SamplingParams,
    Scheduler,
    StepCorrection,
    StepKind,
    StepPlan,
    ThalwegError,
)
from thalweg.scheduler.vote import GroupFlags, plan_step, share_flags

_LOG = logging.getLogger(__name__)

_IDLE_WAIT_S = 0.005
"""How long a step with nothing to do waits for a grammar."""


class EngineFailedError(ThalwegError):
    """A step failed and the state of the device is unknown; this engine takes no more requests."""


class LLMEngine:
    """Serves requests step by step; for a whole list of prompts use `LLM`.

    It is built from its parts, which `thalweg.engine.assembly.build_engine` makes from an `EngineConfig`. Used from one
    thread. A request that is refused raises in `add_request`; one that fails later ends with `error` set; neither
    touches its neighbours.

    is_async: as the scheduler was told. A decode step then stays in flight, and its outputs come with the next call of
    `step`. communicator: of the data-parallel group whose ranks step together; None = alone. timeline: records what the
    host and the device do. instruments: statistics, metrics and the profile server; the engine closes them.
    step_times: the curve that the scheduler decides verify lengths by; given, it is told how long steps take.
    return_draws: outputs say how their tokens were drawn; the runner must report it. grammars: compiles those of
    requests; None refuses requests that have one. The engine closes it.
    """

    def __init__(
        self,
        scheduler: Scheduler,
        runner: Runner,
        tokenizer: Tokenizer,
        admission: Admission,
        *,
        is_async: bool = False,
        communicator: Communicator | None = None,
        timeline: Timeline | None = None,
        instruments: Instruments | None = None,
        step_times: StepTimeCurve | None = None,
        return_draws: bool = False,
        grammars: Grammars | None = None,
    ) -> None:
        self._scheduler = scheduler
        self._runner = runner
        self._tokenizer = tokenizer
        self._admission = admission
        self._is_async = is_async
        self._communicator = communicator
        self._timeline = NullTimeline() if timeline is None else timeline
        self._table = RequestTable()
        self._fan_out = FanOut(scheduler, self._table, tokenizer.eos_token_id)
        self._grammars = Grammars() if grammars is None else grammars
        self._post_processor = PostProcessor(self._table, has_draws=return_draws)
        self._inflight: InflightStep | None = None
        """The launched step that is not post-processed yet."""
        self._flags = GroupFlags(communicator is not None, running=communicator is not None, half_prefilled=False)
        """What the ranks said to each other last; at first nobody knows."""
        self._processed_s = 0.0
        self._ready: list[RequestOutput] = []
        self._failure: str | None = None
        self._is_closed = False
        self._is_stepping = False
        self._step_times = step_times
        self.instruments = Instruments() if instruments is None else instruments
        counted = self._grammars
        self.statistics.watch_grammars(lambda: counted.counts)

    @property
    def tokenizer(self) -> Tokenizer:
        return self._tokenizer

    @property
    def scheduler(self) -> Scheduler:
        """For statistics and tests; planning is the engine's."""
        return self._scheduler

    @property
    def statistics(self) -> StepStatistics:
        """Totals, the figures of the last steps, and callbacks."""
        return self.instruments.statistics

    @property
    def is_async(self) -> bool:
        """Whether decode steps overlap."""
        return self._is_async

    def add_request(
        self,
        request_id: str,
        prompt: str | Sequence[int],
        params: SamplingParams | Mapping[str, Any] | None = None,
        *,
        prompt_text: str | None = None,
        user: str = "",
    ) -> None:
        """Queue a request; one that has a grammar joins the queue once that is compiled.

        prompt: text (the begin token is put in front) or token ids, used as they are.
        params: how to sample; None means the defaults. prompt_text: the text to show beside given token ids.
        user: whose request it is; the grammars of one user do not hold up those of another.
        Raises RequestError for a prompt or a grammar that cannot be served or an id in use; ConfigError for bad params;
        EngineFailedError after a failed step.
        """
        self._check_alive()
        if not isinstance(request_id, str) or not request_id:
            raise RequestError(f"request_id is {request_id!r}; it must be a non-empty string")
        if request_id in self._table:
            raise RequestError(f"request_id {request_id!r} belongs to an unfinished request; it must be unique")
        request = self._admission.admit(request_id, prompt, params, prompt_text)
        if request.params.structured is None:
            self._fan_out.queue(request, request.outputs)
        else:
            self._grammars.submit(request, user)
        self._table.add(request)

    def step(self) -> list[RequestOutput]:
        """Run one step and return the requests that changed, each with everything it has so far.

        With nothing to do but to wait for a grammar it waits, for a few milliseconds.
        With a communicator every call agrees once with the other ranks, so all of them call it equally often. If the
        step fails, every unfinished request ends with the reason and the engine takes no more. Raises RuntimeError when
        a callback of a running step calls it.
        """
        if self._is_closed:
            raise EngineFailedError("the engine is closed")
        if self._is_waiting():
            self._grammars.wait(_IDLE_WAIT_S)  # out here an interrupt does no harm
        self._attempt(self._step)
        return self._take_ready()

    def abort_request(self, request_ids: str | Sequence[str]) -> int:
        """End these requests and return how many were unfinished; their final outputs come with the next step."""
        wanted = [request_ids] if isinstance(request_ids, str) else request_ids
        requests = [request for request in map(self._table.by_request, dict.fromkeys(wanted)) if request is not None]
        sequence_ids = [output.sequence_id for request in requests for output in request.unfinished]
        self._deliver(self._post_processor.end(requests, FinishReason.ABORT))
        self._grammars.forget(requests)
        self._abort_sequences(sequence_ids)
        return len(requests)

    def flush(self) -> list[RequestOutput]:
        """Outputs that need no further step: post-processes what is in flight, waiting for it."""
        self._attempt(self._flush)
        return self._take_ready()

    def hand_back(self, outputs: Sequence[RequestOutput]) -> None:
        """Return these outputs again with the next `step` or `flush`: a caller who met those of another gives them."""
        self._ready += outputs

    def has_unfinished(self) -> bool:
        """Whether `step` has anything left to do or to return; true for one step more after the last token.

        Local: it asks no other rank, but remembers what they said in the last step.
        """
        if self._is_closed:
            return False
        if self._failure is not None:
            return bool(self._ready)
        return bool(self._ready) or self._is_busy or len(self._grammars) > 0 or self._flags.unfinished

    @property
    def num_compiling(self) -> int:
        """Requests that wait for their grammars to be compiled."""
        return self._grammars.num_compiling

    @property
    def failure(self) -> str | None:
        """Why the engine stopped serving; None while it works."""
        return self._failure

    def close(self) -> None:
        """Release the model and the cache. Unfinished requests are dropped."""
        if not self._is_closed:
            self._is_closed = True
            self._inflight = None
            with ExitStack() as parts:
                for part in (self._runner, self._grammars, self.instruments):
                    parts.callback(part.close)

    def __enter__(self) -> Self:
        return self

    def __exit__(self, *_: object) -> None:
        self.close()

    def _step(self) -> None:
        """One iteration: plan and launch step N, post-process N-1 while N runs, then sample N."""
        with self._span("plan"):
            self._pump()
            plan = self._plan()
        if plan is None:
            self._process_inflight()
            return
        self.instruments.before_step()
        with self._span("launch", plan):
            step = self._runner.launch(plan, self._inflight)
        self._process_inflight()
        with self._span("sample", plan):
            correction = self._correct(step)
            step.sequences = self._fan_out.sequences_to_sample(plan)
            self._runner.sample(step, correction, step.sequences)
        self._scheduler.release(plan.step)
        self._inflight = step
        if not (self._is_async and plan.kind is StepKind.DECODE and plan.sequence_ids.size):
            self._process_inflight()

    def _plan(self) -> StepPlan | None:
        """The next plan; None when no rank of the group has anything left."""
        if self._communicator is None:
            return plan_step(self._scheduler) if self._scheduler.has_unfinished else None
        flags = self._flags = share_flags(self._scheduler, self._communicator, has_more=len(self._grammars) > 0)
        return plan_step(self._scheduler, self._communicator, flags) if flags.unfinished else None

    def _flush(self) -> None:
        self._pump()
        self._process_inflight()

    def _pump(self) -> None:
        """Queue the requests whose grammars have been compiled, and end those whose grammars cannot be."""
        for request, error in self._grammars.pump():
            if not request.unfinished:
                continue  # a callback has ended it meanwhile
            if error is None:
                self._fan_out.queue(request, request.outputs)
            else:
                self._deliver(self._post_processor.end([request], FinishReason.STRUCTURED_FAILED, error))

    def _process_inflight(self) -> None:
        """Wait for the step in flight and turn its results into outputs; nothing is in flight afterwards."""
        step, self._inflight = self._inflight, None
        if step is None:
            return
        with self._span("wait", step.plan):
            collected = self._runner.collect(step)
        with self._span("process", step.plan):
            collected, branchings = self._fan_out.branch(step, collected)
            outcome = self._scheduler.process(collected.result)
            branches = self._fan_out.fork(step, branchings, outcome)
        with self._span("outputs", step.plan):
            processed = self._post_processor.process(step.plan, outcome, collected, branchings, branches)
            self._deliver(processed.outputs)
            self._abort_sequences(processed.stopped_ids)
        self._feed_back(step.plan, collected)
        now = time.perf_counter()
        self.statistics.record(
            StepRecord(
                plan=step.plan,
                outcome=outcome,
                forward_ms=1000 * collected.forward_s,
                sampler_ms=1000 * collected.sampler_s,
                mask_ms=1000 * collected.mask_s,
                step_ms=1000 * (now - max(step.started_s, self._processed_s)),
                first_token_ms=tuple(1000 * seconds for seconds in processed.first_token_s),
                num_output_tokens=processed.num_tokens,
                accept_probs=collected.accept_probs,
                draft_faults=collected.draft_faults,
            )
        )
        self._processed_s = now

    def _feed_back(self, plan: StepPlan, collected: Collected) -> None:
        """Tell the scheduler how long a decode step took, if that decides verify lengths."""
        curve, num_rows = self._step_times, plan.sequence_ids.size
        if curve is None or plan.kind is not StepKind.DECODE or not num_rows:
            return
        self._scheduler.record_step_time(
            num_rows,
            size_on_curve(curve, int(plan.query_lengths.sum())),
            1000 * collected.forward_s,
            1000 * collected.sampler_s,
        )

    def _correct(self, step: InflightStep) -> StepCorrection | None:
        """Bring a decode step up to date, now that the one before it was processed."""
        if not self._is_async or step.plan.kind is not StepKind.DECODE:
            return None
        return self._scheduler.correct(step.plan.step, self._runner.query_lengths(step))

    @property
    def _is_busy(self) -> bool:
        """Whether this rank has something to compute, or to post-process."""
        return self._inflight is not None or self._scheduler.has_unfinished

    def _is_waiting(self) -> bool:
        """Whether a step could do nothing until a grammar is there: not here and, as far as known, on no other rank."""
        if not len(self._grammars) or self._ready or self._is_busy:
            return False
        return not (self._flags.running or self._flags.half_prefilled)

    def _abort_sequences(self, sequence_ids: Sequence[int]) -> None:
        if sequence_ids and self._failure is None:
            self._scheduler.abort(sequence_ids)

    def _attempt(self, work: Callable[[], None]) -> None:
        """Do a part of the loop; if it fails, every request ends with the reason."""
        if self._is_closed or self._failure is not None:
            return
        if self._is_stepping:
            raise RuntimeError("a step runs already: callbacks may add and abort requests, but not step or flush")
        self._is_stepping = True
        try:
            work()
        except Exception as error:
            _LOG.exception("step failed; ending %d requests", len(self._table))
            self._fail(f"{type(error).__name__}: {error}")
        except BaseException as error:
            self._fail(f"interrupted by {type(error).__name__}")
            raise
        finally:
            self._is_stepping = False

    def _fail(self, reason: str) -> None:
        self._failure = reason
        self._inflight = None
        error = f"the engine failed: {reason}"
        requests = list(self._table)
        try:
            self._deliver(self._post_processor.end(requests, FinishReason.ERROR, error))
            self._grammars.forget(requests)
        finally:  # the others wait for this rank, whatever else goes wrong
            if self._communicator is not None:
                self._communicator.fail(reason)

    def _deliver(self, outputs: Sequence[RequestOutput]) -> None:
        self._ready += outputs
        self.statistics.record_finished(outputs)

    def _take_ready(self) -> list[RequestOutput]:
        outputs, self._ready = self._ready, []
        return outputs

    def _span(self, name: str, plan: StepPlan | None = None) -> AbstractContextManager[None]:
        return self._timeline.span("host", name, **({} if plan is None else {"step": plan.step}))

    def _check_alive(self) -> None:
        if self._is_closed:
            raise EngineFailedError("the engine is closed")
        if self._failure is not None:
            raise EngineFailedError(f"the engine failed and takes no more requests: {self._failure}")
