"""A scheduler with a scripted sampler behind it, for tests that tell a short story."""

from __future__ import annotations

import dataclasses
from typing import Any, NamedTuple

import numpy as np
from scheduler_testing.cores import Core
from scheduler_testing.sampler import EOS, Script, sample

from thalweg.interfaces import StepKind, StepOutcome, StepPlan
from thalweg.scheduler.config import SchedulerConfig
from thalweg.scheduler.vote import plan_step


def add(scheduler: Any, token_ids: object, **options: Any) -> int:
    """Queue a short request; the tokens and options may be wrong on purpose."""
    sequence_id: int = scheduler.add(token_ids, **({"max_tokens": 4, "eos_token_id": EOS} | options))
    return sequence_id


class Step(NamedTuple):
    plan: StepPlan
    outcome: StepOutcome

    @property
    def ids(self) -> list[int]:
        return [int(sequence_id) for sequence_id in self.plan.sequence_ids]

    @property
    def is_prefill(self) -> bool:
        return self.plan.kind == StepKind.PREFILL

    @property
    def closed(self) -> list[tuple[int, int, int]]:
        """(sequence, final status, output length) of the records without a token."""
        columns = (self.outcome.closed_ids, self.outcome.closed_reasons, self.outcome.closed_num_output_tokens)
        return [(int(first), int(second), int(third)) for first, second, third in zip(*columns, strict=True)]


class Driver:
    """Adds requests by their lengths and runs steps; plans can also be forced to decode, as a lost vote would."""

    def __init__(self, core: Core, config: SchedulerConfig | None = None, **sizes: int) -> None:
        self.scheduler = core.scheduler(config, **sizes)
        self.scripts: dict[int, Script] = {}
        self.draft_length = sizes.get("draft_length", 0)

    def add(
        self,
        prompt: int | list[int],
        *,
        max_tokens: int = 200,
        accept: tuple[int, ...] = (0,),
        eos_at: int | None = None,
        fails_at: int | None = None,
        confidence: float | None = None,
        **options: Any,
    ) -> int:
        """prompt: its token ids, or just a length."""
        token_ids = [2 + index % 50 for index in range(prompt)] if isinstance(prompt, int) else prompt
        sequence_id: int = self.scheduler.add(
            np.array(token_ids, np.int32), max_tokens=max_tokens, eos_token_id=EOS, **options
        )
        self.scripts[sequence_id] = Script(eos_at, list(accept), fails_at, confidence)
        return sequence_id

    def load(
        self,
        length: int,
        num_computed: int,
        *,
        prompt_length: int | None = None,
        max_tokens: int = 200,
        accept: tuple[int, ...] = (0,),
        arrived: bool = True,
        **options: Any,
    ) -> int | None:
        """A sequence whose first cache entries come from elsewhere; arrived: they are there already."""
        script = Script(accept=list(accept))
        num_output = 0 if prompt_length is None else length - prompt_length
        token_ids = [2 + index % 50 for index in range(length - num_output)]
        token_ids += [script.token(index) for index in range(num_output)]
        options = {"max_tokens": max_tokens, "eos_token_id": EOS, "prompt_length": prompt_length} | options
        sequence_id: int | None = self.scheduler.add_loaded(np.array(token_ids, np.int32), num_computed, **options)
        if sequence_id is not None:
            self.scripts[sequence_id] = script
            if arrived:
                self.scheduler.set_schedulable(sequence_id)
        return sequence_id

    def load_ready(self, length: int, **options: Any) -> int:
        """A sequence with one output token that is ready to decode; there must be memory for it."""
        sequence_id = self.load(length, length - 1, prompt_length=length - 1, **options)
        assert sequence_id is not None
        return sequence_id

    def fork(self, sequence_id: int, *, last_token_id: int | None = None) -> int | None:
        """The child produces what its parent would."""
        child: int | None = self.scheduler.fork(sequence_id, last_token_id=last_token_id)
        if child is not None:
            self.scripts[child] = dataclasses.replace(self.scripts[sequence_id])
        return child

    def plan(self) -> StepPlan:
        return plan_step(self.scheduler)

    def plan_decode(self) -> StepPlan:
        """A step whose vote was lost."""
        self.scheduler.begin_step(self.scheduler.has_running, self.scheduler.has_half_prefilled)
        return self.scheduler.finish_step(StepKind.DECODE)

    def finish(self, plan: StepPlan) -> Step:
        self.scheduler.release(plan.step)
        return Step(plan, self.scheduler.process(sample(plan, self.scripts, self.draft_length)))

    def step(self) -> Step:
        return self.finish(self.plan())

    def decode(self) -> Step:
        return self.finish(self.plan_decode())

    def run(self, max_steps: int = 1000) -> list[Step]:
        """Run until nothing is left."""
        steps = []
        while self.scheduler.has_unfinished:
            assert len(steps) < max_steps, "not drained"
            steps.append(self.step())
        return steps

    def state(self, sequence_id: int) -> dict[str, Any]:
        described: dict[str, Any] = self.scheduler.debug_state()["sequences"][sequence_id]
        return described

    @property
    def waiting(self) -> list[int]:
        ids: list[int] = self.scheduler.debug_state()["waiting"]
        return ids

    @property
    def prompted(self) -> list[int]:
        ids: list[int] = self.scheduler.debug_state()["prompted"]
        return ids

    @property
    def running(self) -> list[int]:
        ids: list[int] = self.scheduler.debug_state()["running"]
        return ids
