"""Sequences that end, are aborted or preempted while a step that they are part of is in flight."""

from typing import Any

import pytest
from scheduler_testing.async_driver import AsyncDriver, async_config, decoding, output_of
from scheduler_testing.cores import Core
from scheduler_testing.sampler import EOS

from thalweg.interfaces import SequenceStatus

WAITING = SequenceStatus.WAITING


def test_a_sequence_that_ends_was_planned_once_more_and_that_row_is_dropped(core: Core) -> None:
    driver = decoding(core, 20)
    driver.scripts[0].eos_at = 2
    driver.advance()
    plan, correction, processed = driver.advance()
    assert correction is not None
    assert processed[0].outcome.token_ids.tolist() == [EOS]
    assert processed[0].outcome.finish_reasons.tolist() == [SequenceStatus.FINISHED_STOPPED]
    assert correction.is_live.tolist() == [False]
    # The slot is free, but the row still writes to it.
    assert driver.scheduler.debug_state()["free_draft_slots"][0] == 1
    assert correction.draft_write_slots.tolist() == plan.draft_write_slots.tolist() == [1]
    assert correction.draft_read_slots.tolist() == [0]
    last = driver.plan()
    assert last.sequence_ids.tolist() == []
    assert last.finished_ids.tolist() == [0]
    num_free = driver.scheduler.blocks.num_free
    (dropped,) = driver.flush()
    assert dropped.ids == [0]
    assert dropped.outcome.token_ids.tolist() == dropped.outcome.finish_reasons.nonzero()[0].tolist() == []
    assert dropped.outcome.num_verified.tolist() == [0]
    assert driver.scheduler.blocks.num_free == num_free
    driver.scheduler.release(last.step)
    assert driver.scheduler.blocks.num_free == 64


@pytest.mark.parametrize("when", ["planned", "next planned", "corrected"])
def test_a_request_aborted_with_a_step_in_flight_gets_no_token_of_it(core: Core, when: str) -> None:
    driver = decoding(core, 20, 18)
    driver.advance()
    (num_output,) = {driver.state(0)["len"] - 20}
    if when == "planned":
        assert driver.scheduler.abort([0]) == 1
    plan = driver.plan()
    if when == "next planned":
        assert driver.scheduler.abort([0]) == 1
    steps = [driver.advance(plan)]
    if when == "corrected":
        assert driver.scheduler.abort([0]) == 1
        num_output += 1
    steps += driver.drain()
    closed = [each for step in steps for taken in step.processed for each in taken.closed if each[0] == 0]
    assert closed == [(0, SequenceStatus.FINISHED_ABORTED, num_output)]
    assert len(output_of(steps, 0)) == num_output - 1
    assert len(output_of(steps, 1)) == 199
    assert driver.scheduler.blocks.num_free == 64


def preempted_in_flight(core: Core, **options: Any) -> tuple[AsyncDriver, int, list[Any]]:
    """Two sequences in a small pool, up to the plan that takes one's memory while a step of it is in flight."""
    driver = AsyncDriver(core, async_config(**options), num_blocks=9, block_size=4, draft_length=1)
    driver.add(6, accept=(1,), max_tokens=18)
    driver.add(7, max_tokens=18)
    while len(driver.running) < 2:
        driver.advance()
    steps: list[Any] = []
    while True:
        plan = driver.plan_decode()
        lost = [*plan.restarted_ids.tolist(), *plan.dropped_ids.tolist()]
        if lost:
            assert driver.in_flight is not None
            assert lost[0] in driver.in_flight[0].sequence_ids
            return driver, lost[0], [*steps, plan]
        steps.append(driver.advance(plan))


def test_what_a_step_in_flight_makes_of_a_restarted_sequence_is_ignored(core: Core) -> None:
    driver, victim, (*steps, plan) = preempted_in_flight(core)
    before = driver.state(victim)
    assert before["status"] == WAITING
    assert (before["schedule_count"], before["process_count"], before["total_inflight"]) == (0, 0, 0)
    assert before["blocks"] == []
    iteration = driver.advance(plan)
    (taken,) = iteration.processed
    row = taken.ids.index(victim)
    assert taken.outcome.token_offsets[row + 1] == taken.outcome.token_offsets[row]
    assert taken.outcome.finish_reasons[row] == 0
    assert driver.state(victim) == before
    steps += [iteration, *driver.drain()]
    for sequence_id in (0, 1):
        assert output_of(steps, sequence_id) == [100 + index for index in range(1, 18)]
    assert driver.scheduler.blocks.num_free == 8


def test_a_sequence_preempted_for_good_with_a_step_in_flight_ends_without_its_tokens(core: Core) -> None:
    driver, victim, (*steps, plan) = preempted_in_flight(core, stop_preempted_request=True)
    num_output = driver.state(victim)["len"] - (6 if victim == 0 else 7)
    steps += [driver.advance(plan), *driver.drain()]
    closed = [each for step in steps for taken in step.processed for each in taken.closed]
    assert closed == [(victim, SequenceStatus.FINISHED_PREEMPTED, num_output)]
    assert len(output_of(steps, victim)) == num_output - 1
    assert driver.scheduler.blocks.num_free == 8


def test_a_restarted_sequence_can_be_aborted_before_the_step_in_flight_is_processed(core: Core) -> None:
    driver, victim, (*steps, plan) = preempted_in_flight(core)
    assert driver.scheduler.abort([victim]) == 1
    steps += [driver.advance(plan), *driver.drain()]
    closed = [each for step in steps for taken in step.processed for each in taken.closed]
    assert [each[:2] for each in closed] == [(victim, SequenceStatus.FINISHED_ABORTED)]
    assert driver.scheduler.blocks.num_free == 8


def test_a_grammar_that_fails_ends_its_request_one_step_later(core: Core) -> None:
    driver = AsyncDriver(core, draft_length=1)
    driver.add(5, fails_at=1, is_structured=True)
    driver.add(6, max_tokens=5)
    steps = driver.drain()
    failed = [
        (int(taken.outcome.num_output_tokens[row]), int(taken.outcome.finish_reasons[row]))
        for step in steps
        for taken in step.processed
        for row, sequence_id in enumerate(taken.ids)
        if sequence_id == 0 and taken.outcome.finish_reasons[row]
    ]
    assert failed == [(1, SequenceStatus.FINISHED_STRUCTURED_FAILED)]
    assert output_of(steps, 1) == [100, 101, 102, 103, 104]
