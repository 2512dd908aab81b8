"""Ranks that plan together: equal kinds, equally many reductions, and what is left when one stops answering."""

from __future__ import annotations

from typing import Any

import numpy as np
import pytest
from scheduler_testing.communicator import Group
from scheduler_testing.cores import Core, small_config
from scheduler_testing.driver import Driver

from thalweg.interfaces import PeerDiedError, SequenceStatus, StepKind, StepPlan
from thalweg.scheduler.vote import GroupFlags, plan_step, share_flags


class Ranks:
    """Drivers that share their votes."""

    def __init__(self, core: Core, count: int, **options: Any) -> None:
        self.drivers = [Driver(core, small_config(**options)) for _ in range(count)]
        self.group = Group(count)

    def plan(self) -> list[StepPlan]:
        plans: list[StepPlan] = self.group.run(
            [
                lambda driver=driver, rank=rank: plan_step(driver.scheduler, self.group.member(rank))
                for rank, driver in enumerate(self.drivers)
            ]
        )
        assert len({plan.kind for plan in plans}) == 1
        assert len({len(log) for log in self.group.log}) == 1
        return plans

    def step(self) -> list[StepPlan]:
        plans = self.plan()
        for driver, plan in zip(self.drivers, plans, strict=True):
            driver.finish(plan)
        return plans

    @property
    def num_reductions(self) -> int:
        """Of the latest step, the one for the flags included."""
        return len(self.group.log[0])


def test_flags_are_true_if_they_are_true_of_some_rank(core: Core) -> None:
    ranks = Ranks(core, 3)
    ranks.drivers[1].add(100)
    ranks.drivers[1].step()
    flags = ranks.group.run(
        [
            lambda driver=driver, rank=rank: share_flags(driver.scheduler, ranks.group.member(rank))
            for rank, driver in enumerate(ranks.drivers)
        ]
    )
    assert flags == [GroupFlags(unfinished=True, running=False, half_prefilled=True)] * 3
    ((operation, values),) = ranks.group.log[1]
    assert (operation, values.dtype, values.tolist()) == ("max", np.int32, [1, 0, 1])


def test_without_a_group_the_flags_are_those_of_the_scheduler(core: Core) -> None:
    driver = Driver(core)
    assert share_flags(driver.scheduler) == GroupFlags(unfinished=False, running=False, half_prefilled=False)
    assert share_flags(driver.scheduler, has_more=True).unfinished
    driver.add(5)
    driver.step()
    assert share_flags(driver.scheduler) == GroupFlags(unfinished=True, running=True, half_prefilled=False)


def test_a_step_without_a_vote_holds_no_reduction_but_that_of_the_flags(core: Core) -> None:
    ranks = Ranks(core, 2, prefill_interval_all=3, prefill_interval_any=50)
    for driver in ranks.drivers:
        driver.add(5)
    counts = []
    for _ in range(5):
        ranks.step()
        counts.append(ranks.num_reductions)
    # Won by all; lost as nobody has more; then two steps without a vote; lost again.
    assert counts == [3, 2, 1, 1, 2]


def test_an_all_vote_is_lost_when_one_rank_has_no_prompt(core: Core) -> None:
    ranks = Ranks(core, 2, prefill_interval_all=2, prefill_interval_any=5)
    for driver in ranks.drivers:
        driver.add(5)
    ranks.step()
    ranks.drivers[1].add(5)
    kinds = [ranks.step()[1].kind for _ in range(6)]
    # The any vote of the fifth decode step lets the lone rank prefill.
    assert kinds == [StepKind.DECODE] * 5 + [StepKind.PREFILL]


def test_a_rank_without_a_prompt_follows_with_an_empty_prefill(core: Core) -> None:
    ranks = Ranks(core, 3)
    ranks.drivers[2].add(5)
    plans = ranks.step()
    assert [plan.kind for plan in plans] == [StepKind.PREFILL] * 3
    assert [len(plan.sequence_ids) for plan in plans] == [0, 0, 1]
    assert [driver.scheduler.debug_state()["decode_step"] for driver in ranks.drivers] == [0, 0, 0]


def test_a_prefill_that_nobody_has_memory_for_becomes_a_decode_step(core: Core) -> None:
    ranks = Ranks(core, 2)
    for driver in ranks.drivers:
        driver.add(40)
        driver.scheduler.state_slots.allocate(10)
    plans = ranks.step()
    assert ranks.num_reductions == 3
    assert [plan.kind for plan in plans] == [StepKind.DECODE] * 2


def test_one_rank_with_memory_makes_all_prefill(core: Core) -> None:
    ranks = Ranks(core, 2)
    for driver in ranks.drivers:
        driver.add(40)
    ranks.drivers[0].scheduler.state_slots.allocate(10)
    plans = ranks.step()
    assert [plan.kind for plan in plans] == [StepKind.PREFILL] * 2
    assert [len(plan.sequence_ids) for plan in plans] == [0, 1]


def test_a_request_that_comes_to_an_idle_group_starts_with_the_next_step(core: Core) -> None:
    ranks = Ranks(core, 3, prefill_interval_all=70, prefill_interval_any=100)
    for _ in range(4):
        ranks.step()
    ranks.drivers[2].add(5)
    assert len(ranks.step()[2].sequence_ids) == 1


def test_a_long_prompt_on_a_lone_rank_goes_on_at_the_short_interval(core: Core) -> None:
    ranks = Ranks(
        core, 2, prefill_interval_all=50, prefill_interval_any=60, prefill_interval_continue=3, max_model_len=250
    )
    ranks.drivers[0].add(5, max_tokens=100)
    ranks.step()
    ranks.drivers[1].add(250)
    kinds = [ranks.step()[1] for _ in range(75)]
    prefills = [index for index, plan in enumerate(kinds) if plan.kind == StepKind.PREFILL]
    # It starts with the any vote of decode step 60; its four chunks come three decode steps apart.
    assert prefills == [60, 64, 68, 72]


class SilentPeer:
    """A group whose other rank stops answering after some reductions."""

    rank, size = 0, 2

    def __init__(self, answers: int) -> None:
        self.answers = answers

    def all_reduce_min(self, values: Any) -> Any:
        if not self.answers:
            raise PeerDiedError("rank 1 did not answer within 0 s")
        self.answers -= 1
        return values

    def all_reduce_max(self, values: Any) -> Any:
        return self.all_reduce_min(values)


@pytest.mark.parametrize("answers", [0, 1, 2])
def test_a_vote_that_fails_leaves_a_scheduler_that_can_be_drained(core: Core, answers: int) -> None:
    driver = Driver(core)
    first = driver.add(5)
    driver.step()
    second = driver.add(5)
    with pytest.raises(PeerDiedError, match="rank 1"):
        plan_step(driver.scheduler, SilentPeer(answers))
    if answers > 0:
        with pytest.raises(RuntimeError, match="the step is open already"):
            driver.scheduler.begin_step(True)
        kind = StepKind.PREFILL if answers == 2 else StepKind.DECODE
        step = driver.finish(driver.scheduler.finish_step(kind))
        assert step.ids == [second if answers == 2 else first]
    assert driver.scheduler.abort([first, second]) == 2
    closed = {each[:2] for step in driver.run() for each in step.closed}
    assert closed == {(first, SequenceStatus.FINISHED_ABORTED), (second, SequenceStatus.FINISHED_ABORTED)}
    assert driver.scheduler.debug_state()["sequences"] == {}
    assert driver.scheduler.blocks.num_free == 64


def test_requests_can_be_aborted_while_the_step_of_a_failed_vote_is_open(core: Core) -> None:
    driver = Driver(core)
    sequence = driver.add(5)
    with pytest.raises(PeerDiedError):
        plan_step(driver.scheduler, SilentPeer(2))
    assert driver.scheduler.abort([sequence]) == 1
    step = driver.finish(driver.scheduler.finish_step(StepKind.PREFILL))
    assert step.outcome.token_ids.tolist() == []
    assert driver.run()[-1].closed == [(sequence, SequenceStatus.FINISHED_ABORTED, 0)]
    assert driver.scheduler.blocks.num_free == 64


def test_a_prefill_only_rank_holds_no_vote(core: Core) -> None:
    driver = Driver(core, small_config(engine_type="prompt"))
    driver.add(5)
    plan = plan_step(driver.scheduler, SilentPeer(1))
    assert plan.sequence_ids.tolist() == [0]


def test_a_decode_only_rank_holds_no_vote(core: Core) -> None:
    driver = Driver(core, small_config(engine_type="completion", stop_preempted_request=True))
    driver.load_ready(20)
    assert plan_step(driver.scheduler, SilentPeer(1)).kind == StepKind.DECODE
