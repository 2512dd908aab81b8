"""Sequences whose first cache entries somebody else fills."""

from typing import Any

import numpy as np
import pytest
from scheduler_testing.async_driver import AsyncDriver, output_of
from scheduler_testing.cores import Core, small_config
from scheduler_testing.driver import Driver
from scheduler_testing.sampler import EOS

from thalweg.interfaces import SequenceStatus, StepKind

ABORTED = SequenceStatus.FINISHED_ABORTED


def test_a_loaded_prompt_owns_all_its_memory_at_once_and_waits_for_its_data(core: Core) -> None:
    driver = Driver(core)
    sequence = driver.load(50, 32, arrived=False)
    assert sequence == 0
    blocks, slot = driver.scheduler.memory_of(0)
    assert (blocks.tolist(), slot) == ([1, 2, 3, 4], 1)
    assert blocks.dtype == np.int32
    state = driver.state(0)
    assert (state["num_computed"], state["is_schedulable"], state["status"]) == (32, False, 0)
    assert driver.waiting == [0]
    assert driver.scheduler.has_half_prefilled
    assert not driver.scheduler.begin_step(False, True).wants
    assert driver.scheduler.finish_step(StepKind.DECODE).sequence_ids.tolist() == []


def test_its_prefill_goes_on_behind_what_was_loaded(core: Core) -> None:
    driver = Driver(core)
    sequence = driver.load(50, 32)
    step = driver.step()
    assert step.ids == [sequence]
    assert (step.plan.query_lengths.tolist(), step.plan.context_lengths.tolist()) == ([18], [50])
    assert step.plan.token_ids.tolist() == [2 + index % 50 for index in range(32, 50)]
    assert step.outcome.token_ids.tolist() == [100]


@pytest.mark.parametrize("draft_length", [0, 3])
def test_a_sequence_with_output_and_all_but_the_last_token_is_ready_to_decode(core: Core, draft_length: int) -> None:
    driver = Driver(core, draft_length=draft_length)
    sequence = driver.load(20, 19, prompt_length=17)
    assert (driver.prompted, driver.waiting) == ([sequence], [])
    assert driver.state(0)["draft_slot"] == 0
    assert not driver.scheduler.has_running
    step = driver.step()
    plan = step.plan
    assert plan.kind == StepKind.DECODE
    assert (plan.query_lengths.tolist(), plan.context_lengths.tolist()) == ([1 + draft_length], [20 + draft_length])
    assert plan.prompt_lengths.tolist() == [17]
    assert plan.draft_token_ids.tolist() == [[999] * draft_length]
    assert plan.draft_write_slots.tolist() == [1 if draft_length else 0]
    assert plan.draft_read_slots.tolist() == [0]
    assert step.outcome.token_ids.tolist() == [103]
    assert step.outcome.num_output_tokens.tolist() == [4]
    assert driver.running == [sequence]


@pytest.mark.parametrize(("length", "num_computed", "prompt_length"), [(20, 19, None), (20, 18, 17), (20, 19, 20)])
def test_anything_less_goes_on_with_its_prefill(
    core: Core, length: int, num_computed: int, prompt_length: int | None
) -> None:
    driver = Driver(core)
    driver.load(length, num_computed, prompt_length=prompt_length)
    assert (driver.prompted, driver.waiting) == ([], [0])
    assert driver.step().plan.query_lengths.tolist() == [length - num_computed]


def test_who_is_ready_but_still_being_loaded_holds_nobody_up(core: Core) -> None:
    driver = Driver(core, small_config(max_num_seqs=2))
    first, second, third = driver.load_ready(20, arrived=False), driver.load_ready(20), driver.load_ready(20)
    fourth = driver.load_ready(20)
    assert sorted(driver.step().ids) == [second, third]
    assert driver.prompted == [first, fourth]
    driver.scheduler.set_schedulable(first)
    driver.scheduler.abort([second, third])
    step = driver.step()
    assert sorted(step.ids) == [first, fourth]


def test_a_holder_that_is_still_being_loaded_holds_nobody_up(core: Core) -> None:
    driver = Driver(core)
    late = driver.load(40, 20, arrived=False)
    ready = driver.load(30, 16)
    plain = driver.add(10)
    assert driver.waiting == [late, ready, plain]
    assert driver.step().ids == [ready, plain]
    driver.scheduler.set_schedulable(late)
    assert driver.step().ids == [late]


def test_a_loaded_prompt_is_planned_before_those_that_hold_no_blocks(core: Core) -> None:
    driver = Driver(core, small_config(max_num_batched_tokens=32))
    plain = driver.add(30)
    loaded = driver.load(30, 16)
    assert driver.waiting == [loaded, plain]
    assert driver.step().ids == [loaded, plain]


def test_nothing_is_taken_when_memory_is_short(core: Core) -> None:
    driver = Driver(core, num_blocks=8, num_state_slots=3)
    before = driver.scheduler.debug_state()
    driver.scheduler.blocks.allocate(5)
    assert driver.load(40, 20) is None
    driver.scheduler.blocks.release([5, 4, 3, 2, 1])
    driver.scheduler.state_slots.allocate(2)
    taken = driver.scheduler.debug_state()
    assert driver.load(40, 20) is None
    assert driver.scheduler.debug_state() == taken
    driver.scheduler.state_slots.release([2, 1])
    assert driver.scheduler.debug_state()["sequences"] == before["sequences"] == {}
    assert driver.load(40, 20) == 0


@pytest.mark.parametrize(
    ("length", "num_computed", "options", "message"),
    [
        (20, -1, {}, "num_computed_tokens is -1"),
        (20, 20, {}, "num_computed_tokens is 20"),
        (257, 16, {}, "257 tokens"),
        (176, 16, {}, "176 tokens.*10 blocks"),
        (20, 5, {"prompt_length": 0}, "prompt_length is 0"),
        (20, 5, {"prompt_length": 21}, "prompt_length is 21"),
        (20, 5, {"prompt_length": 17, "max_tokens": 3}, "max_tokens is 3"),
        (20, 5, {"max_tokens": 0}, "max_tokens is 0"),
        (20, 5, {"checkpoints": [4, 4]}, "checkpoints"),
    ],
)
def test_what_could_never_run_is_refused_and_leaves_no_trace(
    core: Core, length: int, num_computed: int, options: dict[str, Any], message: str
) -> None:
    driver = Driver(core, num_blocks=11)
    before = driver.scheduler.debug_state()
    arguments = {"max_tokens": 4, "eos_token_id": EOS} | options
    with pytest.raises(ValueError, match=message):
        driver.scheduler.add_loaded(np.arange(2, 2 + length, dtype=np.int32), num_computed, **arguments)
    assert driver.scheduler.debug_state() == before
    assert driver.load(160, 16) == 0


def test_without_chunking_a_loaded_prompt_is_no_longer_than_a_step(core: Core) -> None:
    config = small_config(chunked_prefill=False, policy="reference")
    driver = Driver(core, config)
    with pytest.raises(ValueError, match="65 tokens"):
        driver.load(65, 40)
    assert driver.load(64, 40) == 0


@pytest.mark.parametrize("is_ready", [False, True])
@pytest.mark.parametrize("is_held", [False, True])
def test_an_abort_frees_a_loaded_sequence_at_once_unless_it_is_held(core: Core, is_ready: bool, is_held: bool) -> None:
    driver = Driver(core)
    sequence = driver.load_ready(40) if is_ready else driver.load(40, 20, arrived=False)
    if is_held:
        driver.scheduler.hold(sequence)
    assert driver.scheduler.abort([sequence]) == 1
    assert driver.scheduler.blocks.num_free == (61 if is_held else 64)
    assert driver.scheduler.state_slots.num_free == (9 if is_held else 10)
    step = driver.step()
    assert step.plan.dropped_ids.tolist() == [sequence]
    assert step.closed == [(sequence, ABORTED, 1 if is_ready else 0)]
    assert not driver.scheduler.has_unfinished
    if is_held:
        assert driver.scheduler.memory_of(sequence)[0].tolist() == [1, 2, 3]
        driver.scheduler.release_one(sequence)
    assert driver.scheduler.blocks.num_free == 64
    assert driver.scheduler.debug_state()["sequences"] == {}


def test_a_hold_that_ends_between_the_abort_and_its_plan_frees_the_memory_then(core: Core) -> None:
    driver = Driver(core)
    sequence = driver.load_ready(40)
    driver.scheduler.hold(sequence)
    driver.scheduler.abort([sequence])
    driver.scheduler.release_one(sequence)
    assert driver.scheduler.blocks.num_free == 64
    assert driver.step().closed == [(sequence, ABORTED, 1)]
    assert driver.scheduler.debug_state()["sequences"] == {}


@pytest.mark.parametrize("kind", [StepKind.PREFILL, StepKind.DECODE])
def test_an_aborted_one_is_dropped_by_the_next_plan_of_either_kind(core: Core, kind: StepKind) -> None:
    driver = Driver(core)
    waiting, ready = driver.add(5), driver.load_ready(20)
    driver.scheduler.abort([ready, waiting])
    driver.scheduler.begin_step(False)
    step = driver.finish(driver.scheduler.finish_step(kind))
    assert step.plan.dropped_ids.tolist() == [waiting, ready]
    assert [each[0] for each in step.closed] == [waiting, ready]


def test_a_loaded_sequence_that_is_preempted_is_recomputed_from_its_first_token(core: Core) -> None:
    driver = Driver(core, num_blocks=7, block_size=8)
    driver.load_ready(16)
    driver.load_ready(24)
    step = driver.step()
    while not len(step.plan.restarted_ids):
        step = driver.step()
    (victim,) = step.plan.restarted_ids.tolist()
    assert driver.state(victim)["num_computed"] == 0
    assert driver.waiting == [victim]
    driver.scheduler.abort([1 - victim])
    driver.step()
    step = driver.step()
    assert step.ids == [victim]
    assert step.plan.kind == StepKind.PREFILL


def test_the_memory_of_an_unknown_sequence_cannot_be_shown(core: Core) -> None:
    driver = Driver(core)
    with pytest.raises(ValueError, match="sequence 3"):
        driver.scheduler.memory_of(3)
    sequence = driver.add(20, max_tokens=1)
    blocks, slot = driver.scheduler.memory_of(sequence)
    assert (blocks.tolist(), slot) == ([], -1)
    driver.run()
    with pytest.raises(ValueError, match=f"sequence {sequence}"):
        driver.scheduler.memory_of(sequence)


def test_the_memory_shown_is_a_copy(core: Core) -> None:
    driver = Driver(core)
    sequence = driver.load_ready(20)
    driver.scheduler.memory_of(sequence)[0][:] = 7
    assert driver.scheduler.memory_of(sequence)[0].tolist() == [1, 2]


def test_ready_sequences_are_admitted_while_another_step_is_in_flight(core: Core) -> None:
    driver = AsyncDriver(core, draft_length=2)
    steps = []
    for _ in range(4):
        driver.load_ready(20, max_tokens=9, accept=(1, 0))
        steps.append(driver.advance())
    assert [len(step.ids) for step in steps] == [1, 2, 3, 4]
    steps += driver.drain()
    for sequence_id in range(4):
        assert output_of(steps, sequence_id) == [100 + index for index in range(1, 9)]
    assert driver.scheduler.blocks.num_free == 64
