"""Engines that only prefill and hand completed prompts over, and engines that only decode what was loaded."""

from typing import Any

import numpy as np
import pytest
from scheduler_testing.async_driver import AsyncDriver, output_of
from scheduler_testing.cores import Core, small_config
from scheduler_testing.driver import Driver
from scheduler_testing.sampler import EOS

from thalweg.interfaces import SequenceStatus, StepKind, VoteRound

ABORTED = SequenceStatus.FINISHED_ABORTED


def prefiller(core: Core, *, policy: str = "default", is_async: bool = False, **sizes: Any) -> Driver:
    config = small_config(engine_type="prompt", policy=policy, async_scheduling=is_async)
    return Driver(core, config, **({"draft_length": 3} | sizes))


def decoder(core: Core, **options: Any) -> AsyncDriver:
    options = {"engine_type": "completion", "stop_preempted_request": True, "async_scheduling": False} | options
    return AsyncDriver(core, small_config(**options), draft_length=2)


def test_every_step_of_a_prefill_only_engine_is_a_prefill_without_a_vote(core: Core) -> None:
    driver = prefiller(core)
    for _ in range(3):
        ballot = driver.scheduler.begin_step(False)
        assert (ballot.round, ballot.wants) == (VoteRound.PREFILL, False)
        assert not driver.scheduler.try_prefill()
        plan = driver.scheduler.finish_step(StepKind.PREFILL)
        assert (plan.kind, len(plan.sequence_ids)) == (StepKind.PREFILL, 0)
        driver.finish(plan)
    driver.add(5)
    assert driver.scheduler.begin_step(False).wants
    with pytest.raises(RuntimeError, match="no decode steps"):
        driver.scheduler.finish_step(StepKind.DECODE)
    assert driver.scheduler.try_prefill()
    with pytest.raises(RuntimeError, match="a prefill already"):
        driver.scheduler.try_prefill()
    assert driver.finish(driver.scheduler.finish_step(StepKind.PREFILL)).ids == [0]


def test_a_completed_prompt_waits_for_its_hand_over(core: Core) -> None:
    driver = prefiller(core)
    sequence, long = driver.add(5), driver.add(100)
    step = driver.step()
    assert step.ids == [sequence, long]
    assert step.outcome.token_ids.tolist() == [100]
    assert step.outcome.completed_ids.tolist() == [sequence]
    state = driver.state(sequence)
    assert (state["num_drafts"], state["draft_slot"], state["len"], state["num_computed"]) == (0, 1, 6, 5)
    step = driver.step()
    assert step.outcome.completed_ids.tolist() == [long]
    assert driver.running == [sequence, long]
    assert driver.scheduler.has_unfinished
    driver.scheduler.release_one(sequence)
    assert driver.running == [long]
    assert driver.scheduler.blocks.num_free == 64 - 7
    driver.scheduler.release_one(sequence)
    driver.scheduler.release_one(long)
    assert not driver.scheduler.has_unfinished
    state = driver.scheduler.debug_state()
    assert state["sequences"] == {}
    assert len(state["free_blocks"]) == 64
    assert state["free_draft_slots"][:2] == [2, 1]


def test_handing_over_ends_a_hold_too(core: Core) -> None:
    driver = prefiller(core)
    sequence = driver.add(5)
    driver.step()
    driver.scheduler.hold(sequence)
    driver.scheduler.release_one(sequence)
    assert driver.running == []
    assert driver.scheduler.debug_state()["sequences"] == {}


def test_a_prompt_that_ends_with_its_first_token_is_not_handed_over(core: Core) -> None:
    driver = prefiller(core)
    driver.add(5, max_tokens=1)
    driver.add(6, eos_at=1)
    step = driver.step()
    assert step.outcome.completed_ids.tolist() == []
    assert step.outcome.finish_reasons.tolist() == [4, 3]
    step = driver.step()
    assert step.plan.dropped_ids.tolist() == [0, 1]
    # Their records were the rows of the step before.
    assert step.closed == []
    assert not driver.scheduler.has_unfinished
    assert driver.scheduler.blocks.num_free == 64


def test_policy_reference_hands_finished_prompts_over_as_well(core: Core) -> None:
    driver = prefiller(core, policy="reference")
    driver.add(5, max_tokens=1)
    assert driver.step().outcome.completed_ids.tolist() == [0]
    assert driver.step().plan.dropped_ids.tolist() == []
    assert driver.running == [0]
    driver.scheduler.release_one(0)
    assert not driver.scheduler.has_unfinished


@pytest.mark.parametrize("is_planned", [False, True])
def test_a_prompt_aborted_before_its_hand_over_is_dropped_with_one_record(core: Core, is_planned: bool) -> None:
    driver = prefiller(core)
    sequence = driver.add(5)
    plan = driver.plan()
    if is_planned:
        assert driver.scheduler.abort([sequence]) == 1
    step = driver.finish(plan)
    assert step.outcome.completed_ids.tolist() == ([] if is_planned else [sequence])
    if not is_planned:
        assert driver.scheduler.abort([sequence]) == 1
    # Handing it over now would only free its memory: its record is still owed.
    driver.scheduler.release_one(sequence)
    assert driver.scheduler.blocks.num_free == 64
    assert driver.running == [sequence]
    step = driver.step()
    assert step.plan.dropped_ids.tolist() == [sequence]
    assert step.closed == [(sequence, ABORTED, 0 if is_planned else 1)]
    assert not driver.scheduler.has_unfinished
    assert driver.scheduler.debug_state()["sequences"] == {}


def test_a_held_prompt_that_is_dropped_keeps_its_memory_but_not_its_draft_slot(core: Core) -> None:
    driver = prefiller(core)
    sequence = driver.add(5)
    driver.step()
    driver.scheduler.hold(sequence)
    driver.scheduler.abort([sequence])
    assert driver.step().plan.dropped_ids.tolist() == [sequence]
    assert driver.scheduler.blocks.num_free == 63
    # There are no more draft slots than running sequences, and no store reads them.
    assert driver.scheduler.debug_state()["free_draft_slots"][0] == 1
    driver.scheduler.release_one(sequence)
    assert driver.scheduler.blocks.num_free == 64


def test_several_unfinished_chunks_keep_their_order(core: Core) -> None:
    driver = prefiller(core)
    for _ in range(3):
        driver.add(40, checkpoints=[16])
    step = driver.step()
    assert step.plan.query_lengths.tolist() == [16, 16, 16]
    assert driver.waiting == [0, 1, 2]


def test_policy_reference_reverses_several_unfinished_chunks(core: Core) -> None:
    driver = prefiller(core, policy="reference")
    for _ in range(3):
        driver.add(40, checkpoints=[16])
    driver.step()
    assert driver.waiting == [2, 1, 0]


def test_completed_prompts_count_against_the_batch_until_they_are_handed_over(core: Core) -> None:
    config = small_config(engine_type="prompt", max_num_seqs=2)
    driver = Driver(core, config)
    for _ in range(3):
        driver.add(5)
    assert driver.step().ids == [0, 1]
    assert driver.step().ids == []
    driver.scheduler.release_one(0)
    assert driver.step().ids == [2]


def test_the_watermark_does_not_hold_prompts_up_where_nothing_grows(core: Core) -> None:
    driver = prefiller(core, num_blocks=11)
    driver.scheduler.blocks.allocate(9)
    driver.add(5)
    assert driver.scheduler.begin_step(False).wants
    assert driver.scheduler.try_prefill()


def test_asynchronous_scheduling_changes_nothing_in_a_prefill_only_engine(core: Core) -> None:
    driver = prefiller(core, is_async=True)
    driver.add(5)
    plan = driver.plan()
    with pytest.raises(RuntimeError, match="processed first"):
        driver.scheduler.begin_step(False)
    with pytest.raises(RuntimeError, match="correct"):
        driver.scheduler.correct(plan.step)
    driver.finish(plan)


def test_a_prefill_only_engine_refuses_what_it_cannot_continue(core: Core) -> None:
    driver = prefiller(core)
    with pytest.raises(ValueError, match="prefill-only"):
        driver.load(20, 19, prompt_length=19)
    sequence = driver.load(20, 16)
    assert driver.step().outcome.completed_ids.tolist() == [sequence]
    with pytest.raises(ValueError, match="prefill-only"):
        driver.scheduler.fork(sequence)


def test_sources_of_copies_keep_a_prefill_only_engine_going_until_they_are_let_go(core: Core) -> None:
    driver = prefiller(core)
    driver.add(70)
    driver.step()
    child = driver.fork(0)
    step = driver.step()
    assert step.plan.state_copies.tolist() == [[1, 2]]
    assert sorted(step.outcome.completed_ids.tolist()) == [0, child]
    driver.scheduler.release_one(0)
    driver.scheduler.release_one(child)
    assert (driver.waiting, driver.running) == ([], [])
    assert driver.scheduler.has_unfinished
    assert driver.scheduler.state_slots.num_free == 9
    driver.step()
    assert not driver.scheduler.has_unfinished
    assert driver.scheduler.state_slots.num_free == 10


def test_a_decode_only_engine_never_votes_and_never_prefills(core: Core) -> None:
    driver = decoder(core)
    driver.load_ready(20)
    for _ in range(3):
        ballot = driver.scheduler.begin_step(False, True)
        assert (ballot.round, ballot.wants) == (VoteRound.NONE, False)
        with pytest.raises(RuntimeError, match="try_prefill"):
            driver.scheduler.try_prefill()
        with pytest.raises(RuntimeError, match="no prefill steps"):
            driver.scheduler.finish_step(StepKind.PREFILL)
        driver.finish(driver.scheduler.finish_step(StepKind.DECODE))


def test_a_prompt_is_refused_by_a_decode_only_engine_with_the_way_in(core: Core) -> None:
    driver = decoder(core)
    with pytest.raises(RuntimeError, match="add_loaded"):
        driver.scheduler.add(np.array([5], np.int32), max_tokens=3, eos_token_id=EOS)
    for length, num_computed, prompt_length in [(20, 16, None), (20, 19, 20), (20, 10, 15)]:
        with pytest.raises(ValueError, match="decode-only"):
            driver.load(length, num_computed, prompt_length=prompt_length)
    assert not driver.scheduler.has_unfinished
    assert driver.load_ready(20) == 0


@pytest.mark.parametrize("is_async", [False, True])
def test_loaded_sequences_and_their_forks_run_to_their_ends(core: Core, is_async: bool) -> None:
    driver = decoder(core, async_scheduling=is_async, max_num_seqs=2)
    for _ in range(3):
        driver.load_ready(20, max_tokens=9, accept=(1, 0, 2))
    child = driver.fork(2)
    assert child == 3
    steps = driver.drain() if is_async else driver.run()
    if is_async:
        for sequence_id in range(4):
            assert output_of(steps, sequence_id) == [100 + index for index in range(1, 9)]
    assert all(len(step.plan.sequence_ids) <= 2 for step in steps)
    assert driver.scheduler.blocks.num_free == 64
    assert driver.scheduler.state_slots.num_free == 10
    assert driver.scheduler.debug_state()["sequences"] == {}


def test_a_decode_only_engine_ends_who_it_has_no_block_for(core: Core) -> None:
    config = small_config(engine_type="completion", stop_preempted_request=True)
    driver = Driver(core, config, num_blocks=5, block_size=8)
    driver.load_ready(16, max_tokens=30)
    driver.load_ready(15, max_tokens=30)
    steps = driver.run()
    closed = [each for step in steps for each in step.closed]
    assert closed[0][1] == SequenceStatus.FINISHED_PREEMPTED
    assert all(len(step.plan.restarted_ids) == 0 for step in steps)
    assert driver.scheduler.blocks.num_free == 4
