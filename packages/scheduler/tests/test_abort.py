"""Aborts in every phase of a request: its memory comes back, and it gets exactly one final record."""

import pytest
from scheduler_testing.cores import Core, small_config
from scheduler_testing.driver import Driver, Step

from thalweg.interfaces import SequenceStatus, StepKind

ABORTED = SequenceStatus.FINISHED_ABORTED


def records_of(steps: list[Step], sequence_id: int) -> list[tuple[int, int]]:
    """(final status, output length) of all final records of a sequence."""
    found = []
    for step in steps:
        for row, row_id in enumerate(step.ids):
            if row_id == sequence_id and step.outcome.finish_reasons[row]:
                found.append((int(step.outcome.finish_reasons[row]), int(step.outcome.num_output_tokens[row])))
        found += [(status, num_output) for closed, status, num_output in step.closed if closed == sequence_id]
    return found


def assert_everything_is_free(driver: Driver) -> None:
    assert driver.scheduler.blocks.num_free == driver.scheduler.blocks.capacity - 1
    assert driver.scheduler.state_slots.num_free == driver.scheduler.state_slots.capacity - 1
    assert driver.scheduler.debug_state()["sequences"] == {}


def test_a_request_that_never_started_is_dropped_by_the_next_plan(core: Core) -> None:
    driver = Driver(core)
    sequence = driver.add(5)
    assert driver.scheduler.abort([sequence]) == 1
    assert driver.scheduler.has_unfinished
    step = driver.step()
    assert step.plan.dropped_ids.tolist() == [sequence]
    assert step.closed == [(sequence, ABORTED, 0)]
    assert step.plan.stats.num_aborted == 1
    assert not driver.scheduler.has_unfinished
    assert_everything_is_free(driver)


def test_a_half_prefilled_prompt_gives_its_memory_back_at_once(core: Core) -> None:
    driver = Driver(core)
    sequence = driver.add(100)
    driver.step()
    driver.scheduler.abort([sequence])
    assert driver.scheduler.blocks.num_free == 64
    assert driver.scheduler.state_slots.num_free == 10
    assert driver.state(sequence)["state_slot"] == -1
    assert not driver.scheduler.has_half_prefilled
    assert records_of(driver.run(), sequence) == [(ABORTED, 0)]
    assert_everything_is_free(driver)


def test_policy_reference_loses_that_memory(core: Core) -> None:
    driver = Driver(core, small_config(policy="reference"))
    sequence = driver.add(100)
    driver.step()
    driver.scheduler.abort([sequence])
    driver.run()
    assert driver.scheduler.blocks.num_free == 64 - 7


def test_a_running_request_leaves_with_the_next_decode_step(core: Core) -> None:
    driver = Driver(core, draft_length=1)
    sequence, other = driver.add(5), driver.add(6, max_tokens=9)
    driver.step()
    driver.step()
    driver.scheduler.abort([sequence])
    step = driver.decode()
    assert step.plan.finished_ids.tolist() == [sequence]
    assert step.closed == [(sequence, ABORTED, 2)]
    assert step.ids == [other]
    driver.run()
    assert_everything_is_free(driver)


def test_policy_reference_gives_an_aborted_running_request_no_record(core: Core) -> None:
    driver = Driver(core, small_config(policy="reference"))
    sequence = driver.add(5)
    driver.step()
    driver.scheduler.abort([sequence])
    assert records_of(driver.run(), sequence) == []


@pytest.mark.parametrize("draft_length", [0, 2])
def test_a_request_aborted_while_its_decode_step_runs_gets_no_token_of_it(core: Core, draft_length: int) -> None:
    driver = Driver(core, draft_length=draft_length)
    sequence = driver.add(5)
    driver.step()
    plan = driver.plan()
    assert driver.scheduler.abort([sequence]) == 1
    step = driver.finish(plan)
    assert step.outcome.token_ids.size == 0
    assert step.outcome.finish_reasons.tolist() == [0]
    assert step.outcome.num_output_tokens.tolist() == [1]
    # The row was found finished: its draft slot is free again, its memory leaves with the next decode step.
    assert driver.scheduler.debug_state()["free_draft_slots"][0] == 1
    assert records_of([step, *driver.run()], sequence) == [(ABORTED, 1)]
    assert_everything_is_free(driver)


@pytest.mark.parametrize("prompt_length", [5, 100])
@pytest.mark.parametrize("phase", ["prepared", "planned"])
def test_a_request_in_a_prefill_step_can_be_aborted_though_it_stands_in_no_queue(
    core: Core, phase: str, prompt_length: int
) -> None:
    driver = Driver(core, draft_length=1)
    sequence = driver.add(prompt_length)
    driver.scheduler.begin_step(False)
    assert driver.scheduler.try_prefill()
    if phase == "prepared":
        assert driver.scheduler.abort([sequence]) == 1
        plan = driver.scheduler.finish_step(StepKind.PREFILL)
    else:
        plan = driver.scheduler.finish_step(StepKind.PREFILL)
        assert driver.scheduler.abort([sequence]) == 1
    step = driver.finish(plan)
    assert step.ids == [sequence]
    assert step.outcome.token_ids.size == 0
    assert driver.running == [sequence]
    assert records_of([step, *driver.run()], sequence) == [(ABORTED, 0)]
    assert_everything_is_free(driver)


def test_policy_reference_does_not_find_a_request_in_a_prefill_step(core: Core) -> None:
    driver = Driver(core, small_config(policy="reference"))
    sequence = driver.add(5)
    plan = driver.plan()
    assert driver.scheduler.abort([sequence]) == 0
    assert driver.finish(plan).outcome.token_ids.tolist() == [100]


def test_only_unfinished_requests_count_and_each_counts_once(core: Core) -> None:
    driver = Driver(core)
    first, second = driver.add(5), driver.add(5, max_tokens=1)
    driver.step()
    assert driver.scheduler.abort([second]) == 0
    assert driver.scheduler.abort([first, first, 77, -1]) == 1
    assert driver.scheduler.abort([first]) == 0
    assert driver.scheduler.abort([]) == 0
    assert driver.scheduler.debug_state()["num_aborted"] == 1


def test_a_finished_request_has_its_record_only_once_though_it_was_aborted_later(core: Core) -> None:
    driver = Driver(core)
    sequence = driver.add(5, max_tokens=1)
    steps = [driver.step()]
    driver.scheduler.abort([sequence])
    assert records_of(steps + driver.run(), sequence) == [(SequenceStatus.FINISHED_LENGTH_CAPPED, 1)]


def test_a_restarted_victim_can_be_aborted(core: Core) -> None:
    driver = Driver(core, small_config(policy="default"), num_blocks=3, block_size=8)
    first, second = driver.add(6), driver.add(6)
    steps = [driver.step()]
    while not len(steps[-1].plan.restarted_ids):
        steps.append(driver.decode())
    (victim,) = steps[-1].plan.restarted_ids.tolist()
    num_output = driver.state(victim)["len"] - 6
    driver.scheduler.abort([first, second])
    steps += driver.run()
    assert records_of(steps, victim) == [(ABORTED, num_output)]
    assert_everything_is_free(driver)


def test_finished_records_come_before_dropped_ones(core: Core) -> None:
    driver = Driver(core)
    running = driver.add(5)
    driver.step()
    waiting = driver.add(5)
    driver.scheduler.abort([waiting, running])
    step = driver.decode()
    assert step.closed == [(running, ABORTED, 1), (waiting, ABORTED, 0)]
