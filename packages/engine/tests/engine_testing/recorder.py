"""What happened in an engine, in order: planning, launching, waiting, processing, releasing."""

from __future__ import annotations

import threading
from collections.abc import Callable
from typing import Any

from engine_testing.bench import Bench

from thalweg.interfaces import StepCorrection, StepKind, StepPlan, StepResult

PATIENCE_S = 20.0


class Recorder:
    """Writes down what a bench's scheduler, runner and stream are asked to do, as "what step"."""

    def __init__(self, bench: Bench) -> None:
        self.events: list[str] = []
        self._history: set[str] = set()
        self.plans: dict[int, StepPlan] = {}
        self.corrections: dict[int, StepCorrection] = {}
        self._happened = threading.Condition()
        self._bench = bench
        bench.engine._scheduler = Proxy(
            bench.scheduler,
            finish_step=self._finish_step,
            process=self._process,
            correct=self._correct,
            release=self._release,
        )
        runner = bench.runner
        for name in ("launch", "sample", "collect"):
            setattr(runner, name, self._recorded(name, getattr(runner, name)))
        runner._stream = Proxy(runner._stream, record=self._record)  # type: ignore[assignment]

    def wait_for(self, event: str) -> None:
        """Block until it has happened. For the device's thread; raises when the host does not get there."""
        with self._happened:
            if not self._happened.wait_for(lambda: event in self._history, PATIENCE_S):
                raise TimeoutError(f"the host waits for the device before {event!r}")

    def take(self) -> list[str]:
        """The events since the last call."""
        with self._happened:
            events, self.events = self.events, []
        return events

    def note(self, event: str) -> None:
        with self._happened:
            self.events.append(event)
            self._history.add(event)
            self._happened.notify_all()

    def _recorded(self, name: str, call: Callable[..., Any]) -> Callable[..., Any]:
        def recorded(*arguments: Any) -> Any:
            plan = arguments[0] if isinstance(arguments[0], StepPlan) else arguments[0].plan
            self.note(f"{name} {plan.step}")
            return call(*arguments)

        return recorded

    def _finish_step(self, kind: StepKind) -> StepPlan:
        plan: StepPlan = self._bench.scheduler.finish_step(kind)
        self.plans[plan.step] = plan
        self.note(f"plan {plan.step}")
        return plan

    def _process(self, result: StepResult) -> Any:
        self.note(f"process {result.step}")
        return self._bench.scheduler.process(result)

    def _correct(self, step: int, query_lengths: Any) -> Any:
        self.note(f"correct {step}")
        self.corrections[step] = self._bench.scheduler.correct(step, query_lengths)
        return self.corrections[step]

    def _release(self, step: int) -> None:
        self.note(f"release {step}")
        self._bench.scheduler.release(step)

    def _record(self) -> Any:
        event = self._bench.backend.stream().record()
        step = max(self.plans, default=-1)
        kind = "results of" if f"sample {step}" in self._history else "lengths of"
        return Proxy(event, wait=lambda: (self.note(f"wait for {kind} {step}"), event.wait()))


class Proxy:
    """An object with some methods replaced."""

    def __init__(self, inner: Any, **replaced: Any) -> None:
        self.__dict__.update(replaced, _inner=inner)

    def __getattr__(self, name: str) -> Any:
        return getattr(self._inner, name)
