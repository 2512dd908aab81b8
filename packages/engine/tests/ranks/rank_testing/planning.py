"""A rank that plans and processes steps as an engine does, without a model: tokens are a function of the request."""

from __future__ import annotations

import importlib
from collections import deque
from contextlib import closing
from typing import Any

import numpy as np
from rank_testing.recorder import Recorder
from rank_testing.stories import Arrival, Story

from thalweg.engine.communicator import GlooCommunicator
from thalweg.interfaces import StepCorrection, StepKind, StepPlan, StepResult
from thalweg.scheduler.config import SchedulerConfig
from thalweg.scheduler.vote import plan_step, share_flags

BASE = {"max_num_seqs": 4, "max_num_batched_tokens": 32, "max_model_len": 512, "chunked_prefill": True}
SIZES = {"num_blocks": 65, "num_state_slots": 8, "block_size": 16, "vocab_size": 1000}


def plan_story(
    rank: int, size: int, store: Any, story: Story, core: str = "thalweg.scheduler", **options: Any
) -> dict[str, Any]:
    """The log of one rank of a group over gloo."""
    with closing(GlooCommunicator(store, rank, size, timeout_s=30)) as communicator:
        return PlanningRank(story[rank], rank, Recorder(communicator), core, options).run()


def plan_alone(arrivals: list[Arrival], rank: int, **options: Any) -> dict[str, Any]:
    """The log of a rank that has nobody to agree with."""
    return PlanningRank(arrivals, rank, None, "thalweg.scheduler", options).run()


class PlanningRank:
    """Runs the requests of one rank to their ends and writes down what happened in every step."""

    def __init__(
        self, arrivals: list[Arrival], rank: int, recorder: Recorder | None, core: str, options: dict[str, Any]
    ) -> None:
        self.is_async = options.get("async_scheduling", False)
        config = SchedulerConfig(**(BASE | options))
        self.scheduler = importlib.import_module(core).Scheduler(config, **SIZES)
        self.arrivals = deque(enumerate(map(Arrival._make, arrivals)))
        self.rank = rank
        self.recorder = recorder
        self.names: dict[int, str] = {}
        self.tokens: dict[str, list[int]] = {}
        self.steps: list[dict[str, Any]] = []
        self.inflight: tuple[StepPlan, StepResult] | None = None

    def run(self) -> dict[str, Any]:
        while self.step():
            assert len(self.steps) < 1000, self.steps[-1]
        free = self.scheduler.blocks.capacity - 1 - self.scheduler.blocks.num_free
        collectives = [] if self.recorder is None else self.recorder.steps
        return {"steps": self.steps, "tokens": self.tokens, "collectives": collectives, "leaked": free}

    def step(self) -> bool:
        """One step of the group; False when no rank has anything left."""
        self.admit()
        if self.recorder is not None:
            self.recorder.next_step()
        flags = share_flags(self.scheduler, self.recorder, has_more=bool(self.arrivals))
        if not flags.unfinished:
            self.process_inflight()
            return False
        plan = plan_step(self.scheduler, self.recorder, flags)
        self.process_inflight()
        is_decode = plan.kind == StepKind.DECODE
        correction = self.scheduler.correct(plan.step) if self.is_async and is_decode else None
        self.inflight = plan, self.sample(plan, correction)
        self.scheduler.release(plan.step)
        if not (self.is_async and is_decode and plan.sequence_ids.size):
            self.process_inflight()
        names = [self.names[sequence_id] for sequence_id in plan.sequence_ids.tolist()]
        self.steps.append({"kind": plan.kind.name, "requests": names, "queries": plan.query_lengths.tolist()})
        return True

    def admit(self) -> None:
        while self.arrivals and self.arrivals[0][1].step <= len(self.steps):
            index, arrival = self.arrivals.popleft()
            sequence_id = self.scheduler.add(
                np.full(arrival.prompt_length, 2 + index, np.int32), max_tokens=arrival.max_tokens, eos_token_id=1
            )
            self.names[sequence_id] = arrival.name(self.rank, index)
            self.tokens[self.names[sequence_id]] = []

    def sample(self, plan: StepPlan, correction: StepCorrection | None) -> StepResult:
        committed = plan.committed_lengths if correction is None else correction.committed_lengths
        num_rows = plan.sequence_ids.size
        empty = np.zeros((num_rows, 0), np.int32)
        tokens = 3 + (31 * plan.sequence_ids + 7 * (committed - plan.prompt_lengths)) % 900
        return StepResult(plan.step, tokens.astype(np.int32), empty, empty, empty.astype(np.float32), None)

    def process_inflight(self) -> None:
        if self.inflight is None:
            return
        plan, result = self.inflight
        self.inflight = None
        outcome = self.scheduler.process(result)
        for row, sequence_id in enumerate(plan.sequence_ids.tolist()):
            tokens = outcome.token_ids[outcome.token_offsets[row] : outcome.token_offsets[row + 1]]
            self.tokens[self.names[sequence_id]] += tokens.tolist()
