"""Sequences that go on from where another one is: what they share, what is copied, and when sources may go."""

from typing import Any

import pytest
from scheduler_testing.async_driver import AsyncDriver, output_of
from scheduler_testing.cores import Core, small_config
from scheduler_testing.driver import Driver

from thalweg.interfaces import SequenceStatus, StepKind

ABORTED = SequenceStatus.FINISHED_ABORTED


def decoding(core: Core, prompt: int = 20, **sizes: Any) -> Driver:
    """One sequence that has its first output token."""
    driver = Driver(core, **sizes)
    driver.add(prompt)
    driver.step()
    return driver


def fork(driver: Driver, sequence_id: int, **options: Any) -> int:
    child = driver.fork(sequence_id, **options)
    assert child is not None
    return child


def test_the_child_of_a_decoding_sequence_shares_full_blocks_and_copies_the_rest(core: Core) -> None:
    driver = decoding(core, 40, draft_length=3)
    child = fork(driver, 0)
    assert driver.prompted == [child]
    parent_blocks, parent_slot = driver.scheduler.memory_of(0)
    blocks, slot = driver.scheduler.memory_of(child)
    assert parent_blocks.tolist() == [1, 2, 3]
    assert blocks.tolist() == [1, 2, 4]
    assert (parent_slot, slot) == (1, 2)
    state = driver.state(child)
    assert (state["len"], state["prompt_len"], state["num_computed"], state["num_drafts"]) == (41, 40, 40, 0)
    plan = driver.plan()
    assert plan.state_copies.tolist() == [[1, 2]]
    assert plan.block_copies.tolist() == [[3, 4]]
    assert plan.sequence_ids.tolist() == [child, 0]
    assert plan.draft_token_ids[0].tolist() == [999] * 3
    step = driver.finish(plan)
    assert step.outcome.token_ids.tolist() == [101, 101]
    following = driver.plan()
    assert following.state_copies.shape == following.block_copies.shape == (0, 2)


def test_a_child_that_starts_at_a_block_border_copies_no_block(core: Core) -> None:
    driver = decoding(core, 32)
    child = fork(driver, 0)
    assert driver.scheduler.memory_of(child)[0].tolist() == [1, 2, 3]
    plan = driver.plan()
    assert plan.state_copies.tolist() == [[1, 2]]
    assert plan.block_copies.shape == (0, 2)


def test_sources_stay_until_the_step_after_the_copies_is_released(core: Core) -> None:
    driver = decoding(core, 20)
    fork(driver, 0, last_token_id=9)
    driver.scheduler.abort([0])
    first = driver.plan()
    assert first.finished_ids.tolist() == [0]
    driver.finish(first)
    # The parent is released; its partly filled block and its slot are still read.
    state = driver.scheduler.debug_state()
    assert 2 not in state["free_blocks"]
    assert 1 not in state["free_state_slots"]
    second = driver.plan()
    assert 2 not in driver.scheduler.debug_state()["free_blocks"]
    driver.scheduler.release(second.step)
    state = driver.scheduler.debug_state()
    assert 2 in state["free_blocks"]
    assert 1 in state["free_state_slots"]
    driver.finish(second)
    assert driver.scheduler.blocks.num_free == 62


def test_a_shared_block_is_free_when_its_last_owner_is_gone(core: Core) -> None:
    driver = decoding(core, 40)
    child = fork(driver, 0)
    driver.step()
    driver.scheduler.abort([0])
    driver.step()
    driver.step()
    assert driver.scheduler.blocks.num_free == 64 - 3
    driver.scheduler.abort([child])
    driver.run()
    assert driver.scheduler.blocks.num_free == 64
    assert driver.scheduler.state_slots.num_free == 10


def test_a_child_may_replace_the_last_token(core: Core) -> None:
    driver = decoding(core, tail_length=2)
    child = fork(driver, 0, last_token_id=55)
    plan = driver.plan()
    assert plan.sequence_ids.tolist() == [child, 0]
    assert plan.tail_token_ids[:, 1].tolist() == [55, 100]
    assert plan.tail_token_ids[0, 0] == plan.tail_token_ids[1, 0]


@pytest.mark.parametrize("token_id", [-1, 1 << 31])
def test_the_replacement_must_be_a_token(core: Core, token_id: int) -> None:
    driver = decoding(core)
    with pytest.raises(ValueError, match=f"last_token_id is {token_id}"):
        driver.scheduler.fork(0, last_token_id=token_id)


def test_a_prompt_token_cannot_be_replaced(core: Core) -> None:
    driver = Driver(core)
    waiting = driver.add(100)
    for _ in range(2):
        before = driver.scheduler.debug_state()
        with pytest.raises(ValueError, match="last_token_id is 5"):
            driver.scheduler.fork(waiting, last_token_id=5)
        assert driver.scheduler.debug_state() == before
        driver.step()


def test_the_child_of_a_half_prefilled_sequence_goes_on_before_it(core: Core) -> None:
    driver = Driver(core)
    parent = driver.add(100)
    driver.step()
    other = driver.add(5)
    child = fork(driver, parent)
    assert driver.waiting == [child, parent, other]
    blocks, slot = driver.scheduler.memory_of(child)
    assert blocks.tolist() == [1, 2, 3, 4, 8, 9, 10]
    assert slot == 2
    step = driver.step()
    assert step.ids == [child, parent]
    assert step.plan.state_copies.tolist() == [[1, 2]]
    # 64 tokens are computed, four whole blocks.
    assert step.plan.block_copies.shape == (0, 2)
    assert step.plan.query_lengths.tolist() == [36, 28]


def test_a_partly_filled_block_of_a_half_prefilled_sequence_is_copied(core: Core) -> None:
    driver = Driver(core, small_config(max_num_batched_tokens=24))
    driver.add(100)
    driver.step()
    child = fork(driver, 0)
    assert driver.scheduler.memory_of(child)[0].tolist() == [1, 8, 9, 10, 11, 12, 13]
    assert driver.plan().block_copies.tolist() == [[2, 8]]


def test_the_child_of_a_sequence_that_owns_nothing_owns_nothing(core: Core) -> None:
    driver = Driver(core)
    first, parent = driver.add(5), driver.add(30)
    child = fork(driver, parent)
    assert driver.waiting == [child, first, parent]
    plan = driver.plan()
    assert plan.sequence_ids.tolist() == [child, first, parent]
    assert plan.state_copies.shape == (0, 2)


def test_a_child_inherits_what_the_request_asked_for(core: Core) -> None:
    driver = Driver(core, draft_length=1)
    driver.add(5, max_tokens=4, eos_at=3, ignore_eos=True, is_structured=True)
    driver.step()
    child = fork(driver, 0)
    steps = driver.run()
    reasons = [int(reason) for step in steps for reason in step.outcome.finish_reasons if reason]
    assert reasons == [SequenceStatus.FINISHED_LENGTH_CAPPED] * 2
    last = [step for step in steps if child in step.ids][-1]
    assert last.outcome.num_output_tokens.tolist() == [4, 4]


def test_a_child_of_a_structured_sequence_is_structured(core: Core) -> None:
    driver = Driver(core)
    driver.add(5, is_structured=True)
    driver.step()
    assert driver.state(fork(driver, 0))["structured_status"] == 1


def test_a_child_waits_for_the_same_data_as_its_parent(core: Core) -> None:
    driver = Driver(core)
    parent = driver.add(5, is_schedulable=False)
    child = fork(driver, parent)
    assert driver.step().ids == []
    driver.scheduler.set_schedulable(child)
    assert driver.step().ids == [child]
    assert driver.waiting == [parent]


def test_parent_and_child_stop_at_the_same_checkpoints(core: Core) -> None:
    driver = Driver(core)
    parent = driver.add(50, checkpoints=[8, 20])
    child = fork(driver, parent)
    chunks: dict[int, list[int]] = {parent: [], child: []}
    while any(sum(lengths) < 50 for lengths in chunks.values()):
        step = driver.step()
        for sequence_id, length in zip(step.ids, step.plan.query_lengths.tolist(), strict=True):
            chunks[sequence_id] += [length] if step.is_prefill else []
    assert chunks == {parent: [8, 12, 30], child: [8, 12, 30]}


def test_nothing_is_taken_when_memory_is_short(core: Core) -> None:
    driver = decoding(core, 20, num_blocks=5, num_state_slots=3)
    taken = driver.scheduler.blocks.allocate(2)
    before = driver.scheduler.debug_state()
    assert driver.scheduler.fork(0) is None
    assert driver.scheduler.debug_state() == before
    driver.scheduler.blocks.release(taken)
    slots = driver.scheduler.state_slots.allocate(1)
    before = driver.scheduler.debug_state()
    assert driver.scheduler.fork(0) is None
    assert driver.scheduler.debug_state() == before
    driver.scheduler.state_slots.release(slots)
    assert driver.scheduler.fork(0) == 1


def test_a_child_aborted_before_its_copies_were_listed_takes_them_along(core: Core) -> None:
    driver = decoding(core, 40)
    before = driver.scheduler.debug_state()
    child = fork(driver, 0)
    driver.scheduler.abort([child])
    assert driver.scheduler.blocks.num_free == len(before["free_blocks"])
    step = driver.step()
    assert step.plan.state_copies.shape == step.plan.block_copies.shape == (0, 2)
    assert step.plan.dropped_ids.tolist() == [child]
    assert step.closed == [(child, ABORTED, 1)]
    driver.scheduler.abort([0])
    driver.run()
    assert driver.scheduler.blocks.num_free == 64
    assert driver.scheduler.state_slots.num_free == 10


def test_a_child_aborted_after_its_copies_were_listed_leaves_the_sources_pinned(core: Core) -> None:
    driver = decoding(core, 40)
    child = fork(driver, 0)
    plan = driver.plan()
    driver.scheduler.abort([child, 0])
    driver.finish(plan)
    steps = driver.run()
    assert {each for step in steps for each in step.plan.finished_ids.tolist()} == {0, child}
    assert driver.scheduler.blocks.num_free == 64
    assert driver.scheduler.state_slots.num_free == 10


def test_the_child_of_a_child_that_was_not_copied_yet_comes_from_the_same_source(core: Core) -> None:
    """Copies of one plan are made side by side: none may read what another one writes."""
    driver = decoding(core, 40)
    child = fork(driver, 0)
    grandchild = fork(driver, child)
    plan = driver.plan()
    assert plan.state_copies.tolist() == [[1, 2], [1, 3]]
    assert plan.block_copies.tolist() == [[3, 4], [3, 5]]
    assert driver.scheduler.memory_of(grandchild)[0].tolist() == [1, 2, 5]
    driver.finish(plan)
    driver.scheduler.abort([0, child, grandchild])
    driver.run()
    assert driver.scheduler.blocks.num_free == 64


def test_a_grandchild_survives_the_abort_of_the_child_between(core: Core) -> None:
    driver = decoding(core, 40)
    child = fork(driver, 0)
    grandchild = fork(driver, child)
    driver.scheduler.abort([child, 0])
    plan = driver.plan()
    assert plan.state_copies.tolist() == [[1, 3]]
    assert plan.block_copies.tolist() == [[3, 5]]
    assert driver.finish(plan).ids == [grandchild]
    driver.scheduler.abort([grandchild])
    driver.run()
    assert driver.scheduler.blocks.num_free == 64
    assert driver.scheduler.state_slots.num_free == 10


def test_a_child_preempted_by_the_plan_that_would_have_listed_its_copies_takes_them_along(core: Core) -> None:
    driver = decoding(core, 31, num_blocks=4, draft_length=1)
    child = fork(driver, 0)
    assert driver.scheduler.blocks.num_free == 0
    # Both need a third block. The parent's memory does not help: one block is shared, the other is still to be copied.
    step = driver.step()
    assert step.plan.restarted_ids.tolist() == [0, child]
    assert step.plan.state_copies.shape == step.plan.block_copies.shape == (0, 2)
    assert step.ids == []
    assert driver.scheduler.blocks.num_free == 3
    assert driver.scheduler.state_slots.num_free == 10
    assert driver.waiting == [child, 0]


@pytest.mark.parametrize("last", ["unknown", "finished", "gone"])
def test_only_a_living_sequence_can_be_forked(core: Core, last: str) -> None:
    driver = Driver(core)
    sequence = driver.add(5, max_tokens=1)
    if last != "unknown":
        driver.step()
    if last == "gone":
        driver.run()
    with pytest.raises(ValueError, match=r"sequence (0|8)"):
        driver.scheduler.fork(8 if last == "unknown" else sequence)


@pytest.mark.parametrize("is_prepared", [False, True])
def test_a_sequence_in_an_unprocessed_prefill_cannot_be_forked(core: Core, is_prepared: bool) -> None:
    driver = decoding(core)
    sequence = driver.add(5)
    while not driver.scheduler.begin_step(True).wants or driver.scheduler.debug_state()["decode_step"] % 4:
        driver.finish(driver.scheduler.finish_step(StepKind.DECODE))
    assert driver.scheduler.try_prefill()
    if not is_prepared:
        plan = driver.scheduler.finish_step(StepKind.PREFILL)
    with pytest.raises(RuntimeError, match=f"sequence {sequence}.*prefill"):
        driver.scheduler.fork(sequence)
    assert driver.fork(0) == 2
    if is_prepared:
        plan = driver.scheduler.finish_step(StepKind.PREFILL)
        assert plan.state_copies.tolist() == [[1, 3]]
    driver.finish(plan)
    assert driver.fork(sequence) == 3


def test_a_sequence_that_is_still_being_loaded_cannot_be_forked(core: Core) -> None:
    driver = Driver(core)
    sequence = driver.load_ready(20, arrived=False)
    with pytest.raises(RuntimeError, match="still being loaded"):
        driver.scheduler.fork(sequence)
    driver.scheduler.set_schedulable(sequence)
    assert driver.fork(sequence) == 1
    assert driver.prompted == [0, 1]


def test_nothing_is_forked_while_two_steps_are_unprocessed(core: Core) -> None:
    driver = AsyncDriver(core, draft_length=3)
    driver.add(20, accept=(2, 0), max_tokens=12)
    driver.advance()
    driver.advance()
    plan = driver.plan()
    with pytest.raises(RuntimeError, match="two are unprocessed"):
        driver.scheduler.fork(0)
    steps = [driver.advance(plan)]
    # One step is in flight; the child stands where the last processed one left its parent.
    length = driver.state(0)["len"]
    child = fork(driver, 0)
    assert driver.state(child)["len"] == length
    assert driver.state(child)["num_computed"] == length - 1
    assert driver.state(child)["total_inflight"] == 0
    plan = driver.plan()
    assert dict(zip(plan.sequence_ids.tolist(), plan.previous_rows.tolist(), strict=True)) == {0: 0, child: -1}
    steps += [driver.advance(plan), *driver.drain()]
    assert output_of(steps, child) == [100 + index for index in range(length - 20, 12)]
    assert output_of(steps, 0)[-1] == 111
    assert driver.scheduler.blocks.num_free == 64
    assert driver.scheduler.state_slots.num_free == 10


def test_a_held_parent_can_be_forked_and_its_child_outlives_it(core: Core) -> None:
    driver = decoding(core, 40)
    driver.scheduler.hold(0)
    child = fork(driver, 0)
    driver.scheduler.abort([0])
    driver.step()
    assert driver.scheduler.memory_of(0)[0].tolist() == [1, 2, 3]
    driver.scheduler.release_one(0)
    driver.scheduler.abort([child])
    driver.run()
    assert driver.scheduler.blocks.num_free == 64
