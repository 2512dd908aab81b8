"""The step loop: requests in, one scheduled forward pass per step, outputs out."""

from __future__ import annotations

import logging
import time
from collections.abc import Mapping, Sequence
from typing import Any, Self

import numpy as np

from thalweg.engine.admission import Admission
from thalweg.engine.inflight import InflightStep, Runner
from thalweg.engine.post_process import PostProcessor
from thalweg.engine.requests import RequestTable, SamplingRow
from thalweg.engine.sampler import Sampled
from thalweg.engine.stats import StepStatistics
from thalweg.engine.tokenizer import Tokenizer
from thalweg.interfaces import (
    FinishReason,
    InvariantError,
    RequestError,
    RequestOutput,
    SamplingParams,
    Scheduler,
    StepPlan,
    StepResult,
    ThalwegError,
)
from thalweg.scheduler.vote import run_local_vote

_LOG = logging.getLogger(__name__)


class EngineFailedError(ThalwegError):
    """A step failed and the state of the device is unknown; this engine takes no more requests."""


class LLMEngine:
    """Serves requests step by step; for a whole list of prompts use `LLM`.

    It is built from its parts, which `thalweg.engine.assembly.build_engine` makes from an `EngineConfig`. Used from one
    thread. A request that is refused raises in `add_request`; one that fails later ends with `error` set; neither
    touches its neighbours.
    """

    def __init__(self, scheduler: Scheduler, runner: Runner, tokenizer: Tokenizer, admission: Admission) -> None:
        self._scheduler = scheduler
        self._runner = runner
        self._tokenizer = tokenizer
        self._admission = admission
        self._table = RequestTable()
        self._post_processor = PostProcessor(self._table)
        self._ready: list[RequestOutput] = []
        self._failure: str | None = None
        self._is_closed = False
        self.statistics = StepStatistics()

    @property
    def tokenizer(self) -> Tokenizer:
        return self._tokenizer

    @property
    def scheduler(self) -> Scheduler:
        """For statistics and tests; planning is the engine's."""
        return self._scheduler

    def add_request(
        self,
        request_id: str,
        prompt: str | Sequence[int],
        params: SamplingParams | Mapping[str, Any] | None = None,
        *,
        prompt_text: str | None = None,
    ) -> None:
        """Queue a request.

        prompt: text (the begin token is put in front) or token ids, used as they are.
        params: how to sample; None means the defaults. prompt_text: the text to show beside given token ids.
        Raises RequestError for a prompt that cannot be served or an id in use; ConfigError for bad params;
        EngineFailedError after a failed step.
        """
        self._check_alive()
        if not isinstance(request_id, str) or not request_id:
            raise RequestError(f"request_id is {request_id!r}; it must be a non-empty string")
        if request_id in self._table:
            raise RequestError(f"request_id {request_id!r} belongs to an unfinished request; it must be unique")
        state = self._admission.admit(request_id, prompt, params, prompt_text)
        state.sequence_id = self._scheduler.add(
            np.array(state.prompt_token_ids, np.int32),
            max_tokens=state.params.max_tokens,
            eos_token_id=self._tokenizer.eos_token_id,
            ignore_eos=state.params.ignore_eos,
        )
        self._table.add(state)

    def step(self) -> list[RequestOutput]:
        """Run one step and return the requests that changed, each with everything it has so far.

        If the step fails, every unfinished request ends with the reason and the engine takes no more.
        """
        if self._is_closed:
            raise EngineFailedError("the engine is closed")
        outputs, self._ready = self._ready, []
        if self._failure is not None or not self._scheduler.has_unfinished:
            return outputs
        try:
            return outputs + self._finish(self._launch())
        except Exception as error:
            _LOG.exception("step failed; ending %d requests", len(self._table))
            return outputs + self._fail(f"{type(error).__name__}: {error}")
        except BaseException as error:
            self._ready += outputs + self._fail(f"interrupted by {type(error).__name__}")
            raise

    def abort_request(self, request_ids: str | Sequence[str]) -> int:
        """End these requests and return how many were unfinished; their final outputs come with the next step."""
        wanted = [request_ids] if isinstance(request_ids, str) else request_ids
        states = [state for state in map(self._table.by_request, dict.fromkeys(wanted)) if state is not None]
        self._ready += self._post_processor.end(states, FinishReason.ABORT)
        self._abort_sequences([state.sequence_id for state in states])
        return len(states)

    def flush(self) -> list[RequestOutput]:
        """Outputs that need no further step: post-processes what is in flight. Steps here are finished in place."""
        outputs, self._ready = self._ready, []
        return outputs

    def hand_back(self, outputs: Sequence[RequestOutput]) -> None:
        """Return these outputs again with the next `step` or `flush`: a caller who met those of another gives them."""
        self._ready += outputs

    def has_unfinished(self) -> bool:
        """Whether `step` has anything left to do or to return; true for one step more after the last token."""
        if self._is_closed:
            return False
        return bool(self._ready) or (self._failure is None and self._scheduler.has_unfinished)

    @property
    def failure(self) -> str | None:
        """Why the engine stopped serving; None while it works."""
        return self._failure

    def close(self) -> None:
        """Release the model and the cache. Unfinished requests are dropped."""
        if not self._is_closed:
            self._is_closed = True
            self._runner.close()

    def __enter__(self) -> Self:
        return self

    def __exit__(self, *_: object) -> None:
        self.close()

    def _launch(self) -> InflightStep:
        started = time.perf_counter()
        plan = run_local_vote(self._scheduler)
        forwarded = self._runner.run(plan, [self._sampling_row(row) for row in plan.sequence_ids.tolist()])
        self._scheduler.release(plan.step)
        return InflightStep(plan, forwarded, started)

    def _finish(self, inflight: InflightStep) -> list[RequestOutput]:
        plan, sampled = inflight.plan, inflight.forwarded.sampled
        outcome = self._scheduler.process(_result(plan, sampled))
        processed = self._post_processor.process(plan, outcome, sampled.broken_rows)
        self._abort_sequences(processed.stopped_ids)
        self.statistics.record(
            plan,
            num_output_tokens=int(outcome.token_ids.size),
            forward_s=inflight.forwarded.forward_s,
            step_s=time.perf_counter() - inflight.started_s,
        )
        return processed.outputs

    def _sampling_row(self, sequence_id: int) -> SamplingRow:
        state = self._table.by_sequence(sequence_id)
        if state is None:
            raise InvariantError(f"sequence {sequence_id} is planned although its request has ended")
        return state.sampling

    def _abort_sequences(self, sequence_ids: Sequence[int]) -> None:
        if sequence_ids and self._failure is None:
            self._scheduler.abort(sequence_ids)

    def _fail(self, reason: str) -> list[RequestOutput]:
        self._failure = reason
        return self._post_processor.end(list(self._table), FinishReason.ERROR, f"the engine failed: {reason}")

    def _check_alive(self) -> None:
        if self._is_closed:
            raise EngineFailedError("the engine is closed")
        if self._failure is not None:
            raise EngineFailedError(f"the engine failed and takes no more requests: {self._failure}")


def _result(plan: StepPlan, sampled: Sampled) -> StepResult:
    num_rows = plan.sequence_ids.size
    no_drafts = np.zeros((num_rows, plan.draft_token_ids.shape[1]), np.int32)
    return StepResult(
        step=plan.step,
        sampled_token_ids=sampled.token_ids,
        accepted_token_ids=no_drafts,
        draft_token_ids=no_drafts,
        confidences=np.zeros(no_drafts.shape, np.float32),
        row_status=None,
    )
