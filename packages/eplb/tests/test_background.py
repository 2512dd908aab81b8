"""Planning in the background: one rank plans, all take the plan in the same step, an error reaches everybody."""

from __future__ import annotations

import threading
import time
from collections.abc import Callable
from concurrent.futures import ThreadPoolExecutor
from typing import Any

import numpy as np
import pytest

from thalweg.eplb.background import BackgroundPlanner
from thalweg.eplb.placement import Placement
from thalweg.interfaces import ConfigError, InvariantError

SIZE = 3
STAYS = [0, 1, 2, 3, 0, 1]
BACKWARDS = np.array([range(6), range(6)], np.int32)[:, ::-1]
CURRENT = Placement.from_slots(np.array([STAYS, STAYS], np.int32), SIZE, 4, copy_order=BACKWARDS)
TARGET = Placement.from_slots(np.array([[3, 0, 1, 2, 3, 1], STAYS], np.int32), SIZE, 4)
EXPECTED = CURRENT.with_layers(TARGET, np.array([True, False]))
HISTORY = np.ones((5, 2, 4), np.int32)


class ThreadChannel:
    """thalweg.eplb.Channel between threads that stand for ranks."""

    def __init__(self, rank: int, barrier: threading.Barrier, said: dict[int, bytes]) -> None:
        self._rank, self._barrier, self._said = rank, barrier, said

    @property
    def rank(self) -> int:
        return self._rank

    @property
    def size(self) -> int:
        return SIZE

    def exchange(self, data: bytes) -> list[bytes]:
        self._said[self._rank] = data
        self._barrier.wait(10)
        answers = [self._said[rank] for rank in range(SIZE)]
        self._barrier.wait(10)
        return answers


def run_ranks(make_plan: Callable[..., Placement], program: Callable[[BackgroundPlanner], Any]) -> list[Any]:
    """What `program` returned on each rank; rank 1 plans."""
    barrier, said = threading.Barrier(SIZE), dict[int, bytes]()
    planners = [BackgroundPlanner(make_plan, ThreadChannel(rank, barrier, said), 1) for rank in range(SIZE)]
    with ThreadPoolExecutor(SIZE) as pool:
        return [future.result() for future in [pool.submit(program, planner) for planner in planners]]


def steps_until_a_plan(planner: BackgroundPlanner) -> tuple[int, Placement]:
    planner.start(HISTORY, CURRENT)
    steps = 0
    while (plan := planner.poll()) is None:
        assert planner.is_planning
        steps += 1
        time.sleep(0.001)
    assert not planner.is_planning
    return steps, plan


def test_all_ranks_take_the_plan_in_the_same_step_and_run_on_meanwhile() -> None:
    calls = []

    def make_plan(history: np.ndarray, current: Placement) -> Placement:
        calls.append((history, current))
        time.sleep(0.1)
        return TARGET

    results = run_ranks(make_plan, steps_until_a_plan)
    assert len(calls) == 1, "one rank plans"
    assert calls[0][0] is HISTORY
    assert calls[0][1] is CURRENT
    steps = {steps for steps, _ in results}
    assert len(steps) == 1
    assert steps.pop() > 3
    for _, plan in results:
        assert plan.equals(EXPECTED)


def test_a_plan_that_fails_is_an_error_on_every_rank_and_the_next_one_may_come() -> None:
    attempts = []

    def make_plan(history: np.ndarray, current: Placement) -> Placement:
        attempts.append(history)
        if len(attempts) == 1:
            raise ValueError("no history")
        return TARGET

    def program(planner: BackgroundPlanner) -> Placement:
        with pytest.raises(InvariantError, match="planning failed on rank 1"):
            steps_until_a_plan(planner)
        return steps_until_a_plan(planner)[1]

    assert all(plan.equals(EXPECTED) for plan in run_ranks(make_plan, program))


def test_nothing_is_polled_when_nothing_was_started_and_one_plan_is_made_at_a_time() -> None:
    channel = ThreadChannel(0, threading.Barrier(1), {})
    planner = BackgroundPlanner(lambda history, current: TARGET, channel, planning_rank=2)
    assert planner.poll() is None
    planner.start(HISTORY, CURRENT)
    with pytest.raises(InvariantError, match="a plan is being made"):
        planner.start(HISTORY, CURRENT)
    with pytest.raises(ConfigError, match=r"planning_rank is 3; it must be an integer in 0\.\.2"):
        BackgroundPlanner(lambda history, current: TARGET, channel, planning_rank=3)
