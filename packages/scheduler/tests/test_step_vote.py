"""When a step holds a vote, and what a rank says in it."""

import pytest
from scheduler_testing.cores import Core, small_config
from scheduler_testing.driver import Driver

from thalweg.interfaces import Ballot, StepKind, VoteRound

NONE, ALL, ANY = VoteRound.NONE, VoteRound.ALL, VoteRound.ANY


def rounds(driver: Driver, count: int, *, anyone_running: bool = True, half_prefilled: bool = False) -> list[VoteRound]:
    """The votes of the next decode steps; the group always says no."""
    seen = []
    for _ in range(count):
        seen.append(driver.scheduler.begin_step(anyone_running, half_prefilled).round)
        driver.finish(driver.scheduler.finish_step(StepKind.DECODE))
    return seen


@pytest.mark.parametrize("policy", ["default", "reference"])
def test_votes_follow_the_two_intervals_and_any_wins_over_all(core: Core, policy: str) -> None:
    driver = Driver(core, small_config(prefill_interval_all=2, prefill_interval_any=3, policy=policy))
    assert rounds(driver, 7) == [ALL, NONE, ALL, ANY, ALL, NONE, ANY]


def test_a_prefill_starts_the_count_again(core: Core) -> None:
    driver = Driver(core, small_config(prefill_interval_all=5, prefill_interval_any=7))
    assert rounds(driver, 3) == [ALL, NONE, NONE]
    driver.scheduler.begin_step(True)
    driver.finish(driver.scheduler.finish_step(StepKind.PREFILL))
    assert driver.scheduler.debug_state()["decode_step"] == 0
    assert rounds(driver, 2) == [ALL, NONE]


def test_a_group_that_runs_nothing_votes_at_once(core: Core) -> None:
    driver = Driver(core, small_config(prefill_interval_all=50, prefill_interval_any=60))
    assert rounds(driver, 3, anyone_running=False) == [ANY, ANY, ANY]


def test_policy_reference_lets_an_idle_group_wait(core: Core) -> None:
    driver = Driver(core, small_config(prefill_interval_all=3, prefill_interval_any=60, policy="reference"))
    assert rounds(driver, 4, anyone_running=False, half_prefilled=True) == [ALL, NONE, NONE, ALL]


def test_a_half_prefilled_prompt_somewhere_shortens_the_any_interval(core: Core) -> None:
    driver = Driver(core, small_config(prefill_interval_all=50, prefill_interval_any=60, prefill_interval_continue=2))
    assert rounds(driver, 5, half_prefilled=True) == [ALL, NONE, ANY, NONE, ANY]
    assert rounds(driver, 4, half_prefilled=False) == [NONE, NONE, NONE, NONE]


def wants(driver: Driver) -> bool:
    ballot = driver.scheduler.begin_step(driver.scheduler.has_running)
    assert isinstance(ballot, Ballot)
    driver.finish(driver.scheduler.finish_step(StepKind.DECODE))
    return ballot.wants


def test_only_a_schedulable_head_is_wanted(core: Core) -> None:
    driver = Driver(core)
    assert not wants(driver)
    first = driver.add(5, is_schedulable=False)
    driver.add(5)
    assert not wants(driver)
    driver.scheduler.set_schedulable(first)
    assert wants(driver)


@pytest.mark.parametrize("policy", ["default", "reference"])
@pytest.mark.parametrize(("num_blocks", "is_wanted"), [(10, True), (11, False)])
def test_a_new_prompt_is_wanted_up_to_exactly_nine_tenths_the_null_block_included(
    core: Core, policy: str, num_blocks: int, is_wanted: bool
) -> None:
    """One block is free: 9 of 10 are used, or 10 of 11."""
    driver = Driver(core, small_config(policy=policy), num_blocks=num_blocks)
    driver.scheduler.blocks.allocate(num_blocks - 2)
    driver.add(5)
    assert wants(driver) == is_wanted


def start_a_prompt_that_fills_the_pool(core: Core, policy: str) -> Driver:
    driver = Driver(core, small_config(max_num_batched_tokens=16, policy=policy), num_blocks=5)
    driver.add(60)
    assert driver.step().plan.query_lengths.tolist() == [16]
    assert driver.scheduler.blocks.num_free == 0
    return driver


def test_a_half_prefilled_prompt_goes_on_above_the_watermark(core: Core) -> None:
    driver = start_a_prompt_that_fills_the_pool(core, "default")
    assert driver.scheduler.has_half_prefilled
    assert [driver.step().plan.query_lengths.tolist() for _ in range(3)] == [[16], [16], [12]]


def test_policy_reference_stops_such_a_prompt_for_ever(core: Core) -> None:
    driver = start_a_prompt_that_fills_the_pool(core, "reference")
    assert not any(driver.step().ids for _ in range(20))


def test_an_aborted_head_hides_nobody_and_is_no_reason_to_prefill(core: Core) -> None:
    driver = Driver(core)
    first = driver.add(5, is_schedulable=False)
    driver.scheduler.abort([first])
    assert not driver.scheduler.begin_step(False).wants
    driver.finish(driver.scheduler.finish_step(StepKind.DECODE))
    second = driver.add(5, is_schedulable=False)
    driver.add(5)
    driver.scheduler.abort([second])
    assert driver.scheduler.begin_step(False).wants
