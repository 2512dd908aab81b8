"""Several schedulers that are given the same calls and have to give the same answers."""

from __future__ import annotations

import dataclasses
import functools
from collections.abc import Callable, Sequence
from typing import Any

import numpy as np
from scheduler_testing.cores import Core
from scheduler_testing.workload import Workload

from thalweg.dspark import ThroughputBudget
from thalweg.interfaces import Ballot, StepKind, StepPlan


def new_scheduler(core: Core, workload: Workload) -> Any:
    """A scheduler that can vary its verify lengths; the C++ core brings its own budget."""
    budget = {"verify_budget": ThroughputBudget()} if core.name == "reference" else {}
    return core.Scheduler(workload.config, **workload.sizes, **budget, flops_model=workload.flops_model)


class Twin:
    """Satisfies `thalweg.interfaces.Scheduler` as far as planning goes; everything else through `call`."""

    def __init__(self, schedulers: Sequence[Any]) -> None:
        self._schedulers = list(schedulers)
        self.ballot: Ballot | None = None
        self.prepared: bool | None = None
        """What `try_prefill` answered in the latest step; None = it was not asked."""
        self.between: Callable[[], None] = lambda: None
        """Called between the calls that plan a step."""
        self._state: dict[str, Any] | None = None
        """Described since the last call."""

    def call(self, name: str, *args: Any, **options: Any) -> Any:
        """The common answer of all schedulers, or their common error."""
        self._state = None
        return self._agree([lambda s=s: getattr(s, name)(*args, **options) for s in self._schedulers])

    def get(self, name: str) -> Any:
        return self._agree([lambda s=s: getattr(s, name) for s in self._schedulers])

    def pool(self, pool: str, name: str, *args: Any) -> Any:
        """A call of one of the two pools."""
        self._state = None
        return self._agree([lambda s=s: getattr(getattr(s, pool), name)(*args) for s in self._schedulers])

    def state(self) -> dict[str, Any]:
        """The common inner state; every test looks at it often, so it is asked for once after each call."""
        if self._state is None:
            self._state = self._agree([s.debug_state for s in self._schedulers])
        return self._state

    @property
    def has_unfinished(self) -> bool:
        return bool(self.get("has_unfinished"))

    @property
    def has_running(self) -> bool:
        return bool(self.get("has_running"))

    @property
    def has_half_prefilled(self) -> bool:
        return bool(self.get("has_half_prefilled"))

    def begin_step(self, anyone_running: bool, anyone_half_prefilled: bool = False) -> Ballot:
        self.prepared = None
        self.ballot = self.call("begin_step", anyone_running, anyone_half_prefilled)
        self.between()
        assert self.ballot is not None
        return self.ballot

    def try_prefill(self) -> bool:
        self.prepared = bool(self.call("try_prefill"))
        self.between()
        return self.prepared

    def finish_step(self, kind: StepKind) -> StepPlan:
        plan: StepPlan = self.call("finish_step", kind)
        return plan

    def _agree(self, calls: list[Callable[[], Any]]) -> Any:
        answers = [_answer(call) for call in calls]
        first_value, first_error = answers[0]
        for value, error in answers[1:]:
            if first_error is not None or error is not None:
                assert type(first_error) is type(error), f"{first_error!r} here, {error!r} there"
                assert str(first_error) == str(error)
            assert_equal(first_value, value)
        if first_error is not None:
            raise first_error
        return first_value


def _answer(call: Callable[[], Any]) -> tuple[Any, Exception | None]:
    try:
        return call(), None
    except Exception as error:
        return None, error


@functools.cache
def _fields(kind: type) -> tuple[str, ...]:
    return tuple(field.name for field in dataclasses.fields(kind))


def assert_equal(first: Any, second: Any, name: str = "answer") -> None:
    """Equal values, dtypes and shapes; dataclasses and dictionaries part by part, so that a failure names the part."""
    if isinstance(first, np.ndarray):
        assert first.dtype == second.dtype, name
        assert first.shape == second.shape, f"{name}: {first} {second}"
        # Bytes compare faster than values, and only floats have several of these for one value.
        is_equal = first.tobytes() == second.tobytes() or np.array_equal(
            first, second, equal_nan=first.dtype.kind == "f"
        )
        assert is_equal, f"{name}: {first} {second}"
        assert second.flags.c_contiguous, name
    elif dataclasses.is_dataclass(first):
        assert type(first) is type(second)
        for field in _fields(type(first)):
            assert_equal(getattr(first, field), getattr(second, field), field)
    elif isinstance(first, dict) and first != second:
        assert first.keys() == second.keys(), f"{name}: {first.keys() ^ second.keys()}"
        for key in first:
            assert_equal(first[key], second[key], f"{name}[{key!r}]")
    elif isinstance(first, tuple):
        assert len(first) == len(second), name
        for index, (left, right) in enumerate(zip(first, second, strict=True)):
            assert_equal(left, right, f"{name}[{index}]")
    else:
        assert first == second, f"{name}: {first} {second}"
