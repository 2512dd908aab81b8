"""The driver of short stories that keeps one decode step in flight while it plans the next one."""

from __future__ import annotations

from typing import Any, NamedTuple

import numpy as np
from scheduler_testing.cores import Core, small_config
from scheduler_testing.driver import Driver, Step
from scheduler_testing.sampler import sample

from thalweg.interfaces import StepCorrection, StepKind, StepPlan, StepResult
from thalweg.scheduler.config import SchedulerConfig


class AsyncStep(NamedTuple):
    """What one iteration planned, and the steps whose results it took, oldest first."""

    plan: StepPlan
    correction: StepCorrection | None
    processed: list[Step]

    @property
    def ids(self) -> list[int]:
        return [int(sequence_id) for sequence_id in self.plan.sequence_ids]

    @property
    def tokens(self) -> list[list[int]]:
        """Tokens of each processed step."""
        return [step.outcome.token_ids.tolist() for step in self.processed]


class AsyncDriver(Driver):
    """Plan N, process N-1, correct N, release N: as an engine does it."""

    def __init__(self, core: Core, config: SchedulerConfig | None = None, **sizes: Any) -> None:
        super().__init__(core, config or async_config(), **sizes)
        self.in_flight: tuple[StepPlan, StepResult] | None = None

    def advance(self, plan: StepPlan | None = None) -> AsyncStep:
        """One iteration; a prefill is processed in place."""
        plan = self.plan() if plan is None else plan
        processed = self.flush()
        correction = self.scheduler.correct(plan.step) if plan.kind == StepKind.DECODE else None
        self.scheduler.release(plan.step)
        self.launch(plan, correction)
        if correction is None:
            processed += self.flush()
        return AsyncStep(plan, correction, processed)

    def launch(self, plan: StepPlan, correction: StepCorrection | None) -> None:
        """Sample a step and leave its result unprocessed."""
        self.in_flight = (plan, sample(plan, self.scripts, self.draft_length, correction))

    def flush(self) -> list[Step]:
        """Process what is in flight."""
        if self.in_flight is None:
            return []
        (plan, result), self.in_flight = self.in_flight, None
        return [Step(plan, self.scheduler.process(result))]

    def drain(self, max_steps: int = 1000) -> list[AsyncStep]:
        """Run until nothing is left; the last result is taken by a flush of its own."""
        steps: list[AsyncStep] = []
        while self.scheduler.has_unfinished:
            assert len(steps) < max_steps, "not drained"
            if self.in_flight is not None and not self._has_queued():
                steps.append(AsyncStep(self.in_flight[0], None, self.flush()))
            else:
                steps.append(self.advance())
        return steps

    def _has_queued(self) -> bool:
        state = self.scheduler.debug_state()
        return bool(state["waiting"] or state["prompted"] or state["running"])


def async_config(**options: Any) -> SchedulerConfig:
    return small_config(**({"async_scheduling": True} | options))


def output_of(steps: list[AsyncStep], sequence_id: int) -> list[int]:
    """All tokens that a sequence produced in these iterations."""
    tokens: list[int] = []
    for step in (each for iteration in steps for each in iteration.processed):
        for row in np.flatnonzero(step.plan.sequence_ids == sequence_id):
            offsets = step.outcome.token_offsets
            tokens += step.outcome.token_ids[offsets[row] : offsets[row + 1]].tolist()
    return tokens


def decoding(core: Core, *prompts: int, accept: tuple[int, ...] = (0,), **sizes: Any) -> AsyncDriver:
    """Requests whose prompts are done; nothing is in flight."""
    driver = AsyncDriver(core, **({"draft_length": 3} | sizes))
    for prompt in prompts:
        driver.add(prompt, accept=accept)
    while len(driver.running) < len(prompts):
        driver.advance()
    return driver
