"""The calls of the interface: their order, their arguments, and what they hand out."""

import dataclasses
from typing import Any

import numpy as np
import pytest
from scheduler_testing.cores import Core, small_config
from scheduler_testing.driver import Driver, add
from scheduler_testing.sampler import Script, sample

from thalweg.interfaces import BlockAllocator, StepKind, StepPlan
from thalweg.scheduler.vote import plan_step


@pytest.mark.parametrize(
    ("token_ids", "options", "message"),
    [
        (np.zeros(0, np.int32), {}, "token_ids"),
        (np.zeros((2, 2), np.int32), {}, "token_ids"),
        (np.array([3, -1], np.int32), {}, "token_ids"),
        (np.array([3.0, 4.0]), {}, "token_ids"),
        (np.array([3, 1 << 31], np.int64), {}, "token_ids"),
        (np.array([3], np.int32), {"max_tokens": 0}, "max_tokens"),
        (np.array([3], np.int32), {"max_tokens": -7}, "max_tokens"),
        (np.array([3], np.int32), {"checkpoints": [4, 3]}, "checkpoints"),
        (np.array([3], np.int32), {"checkpoints": [3, 3]}, "checkpoints"),
        (np.array([3], np.int32), {"checkpoints": [0]}, "checkpoints"),
        (np.array([3], np.int32), {"checkpoints": [-2, 5]}, "checkpoints"),
    ],
)
def test_a_bad_request_is_refused_by_name_and_leaves_no_trace(
    core: Core, token_ids: object, options: dict[str, Any], message: str
) -> None:
    scheduler = core.scheduler()
    with pytest.raises(ValueError, match=message):
        add(scheduler, token_ids, **options)
    assert not scheduler.has_unfinished
    assert add(scheduler, np.array([3], np.int32)) == 0


def test_sequence_ids_count_up_from_zero_and_are_never_reused(core: Core) -> None:
    driver = Driver(core)
    assert [driver.add(5, max_tokens=1) for _ in range(3)] == [0, 1, 2]
    driver.run()
    assert driver.add(5) == 3


def test_calls_out_of_order_are_refused_and_change_nothing(core: Core) -> None:
    driver = Driver(core)
    driver.add(5)
    scheduler = driver.scheduler
    with pytest.raises(RuntimeError, match="begin_step"):
        scheduler.try_prefill()
    with pytest.raises(RuntimeError, match="begin_step"):
        scheduler.finish_step(StepKind.DECODE)
    scheduler.begin_step(False)
    with pytest.raises(RuntimeError, match="begin_step"):
        scheduler.begin_step(False)
    assert scheduler.try_prefill()
    with pytest.raises(RuntimeError, match="try_prefill"):
        scheduler.try_prefill()
    with pytest.raises(RuntimeError, match="prefill"):
        scheduler.finish_step(StepKind.DECODE)
    plan = scheduler.finish_step(StepKind.PREFILL)
    with pytest.raises(RuntimeError, match="process"):
        scheduler.begin_step(True)
    assert driver.finish(plan).outcome.token_ids.tolist() == [100]


def test_a_prefill_that_was_not_asked_for_is_refused(core: Core) -> None:
    driver = Driver(core)
    assert not driver.scheduler.begin_step(False).wants
    with pytest.raises(RuntimeError, match="try_prefill"):
        driver.scheduler.try_prefill()
    driver.finish(driver.scheduler.finish_step(StepKind.DECODE))
    driver.add(5)
    assert driver.scheduler.begin_step(True).wants
    with pytest.raises(RuntimeError, match="try_prefill"):
        driver.scheduler.try_prefill()


@pytest.mark.parametrize("kind", [2, -1, "decode"])
def test_an_unknown_kind_of_step_is_refused(core: Core, kind: object) -> None:
    scheduler = core.scheduler()
    scheduler.begin_step(False)
    with pytest.raises((ValueError, TypeError)):
        scheduler.finish_step(kind)
    assert scheduler.finish_step(StepKind.DECODE).step == 0


def test_a_prefill_that_finds_no_memory_changes_nothing_and_becomes_a_decode_step(core: Core) -> None:
    driver = Driver(core, num_blocks=11)
    driver.scheduler.blocks.allocate(5)
    driver.add(100)
    assert driver.scheduler.begin_step(False).wants
    before = driver.scheduler.debug_state()
    assert not driver.scheduler.try_prefill()
    assert driver.scheduler.debug_state() == before
    assert driver.finish(driver.scheduler.finish_step(StepKind.DECODE)).ids == []


def test_a_rank_without_a_prefill_follows_the_group_with_an_empty_plan(core: Core) -> None:
    driver = Driver(core)
    driver.add(5)
    driver.step()
    driver.scheduler.begin_step(True)
    step = driver.finish(driver.scheduler.finish_step(StepKind.PREFILL))
    assert step.is_prefill
    assert step.ids == []
    assert driver.running == [0]


def arrays(value: object) -> dict[str, np.ndarray[Any, Any]]:
    return {
        field.name: getattr(value, field.name)
        for field in dataclasses.fields(value)  # type: ignore[arg-type]
        if isinstance(getattr(value, field.name), np.ndarray)
    }


INT64 = {"sequence_ids", "finished_ids", "dropped_ids", "restarted_ids", "closed_ids", "completed_ids"}
OTHER = {"finish_reasons": np.int8, "closed_reasons": np.int8, "verified_confidences": np.float32}


@pytest.mark.parametrize("num_requests", [0, 1, 3])
def test_every_array_has_the_documented_dtype_and_shape(core: Core, num_requests: int) -> None:
    driver = Driver(core, draft_length=2, tail_length=3)
    for length in range(num_requests):
        driver.add(20 + length)
    for step in (driver.step(), driver.decode()):
        rows, total = len(step.ids), int(step.plan.query_lengths.sum())
        assert rows == num_requests
        for name, array in (arrays(step.plan) | arrays(step.outcome)).items():
            expected = np.int64 if name in INT64 else OTHER.get(name, np.int32)
            assert array.dtype == expected, name
            assert array.flags.c_contiguous, name
        plan, outcome = step.plan, step.outcome
        shapes = {
            "sequence_ids": (rows,),
            "query_lengths": (rows,),
            "context_lengths": (rows,),
            "committed_lengths": (rows,),
            "prompt_lengths": (rows,),
            "block_offsets": (rows + 1,),
            "block_ids": (int(plan.block_offsets[-1]),),
            "state_slots": (rows,),
            "window_valid_start": (rows,),
            "tail_token_ids": (rows, 3),
            "token_ids": (total if step.is_prefill else 0,),
            "next_token_ids": (rows if step.is_prefill else 0,),
            "draft_token_ids": (rows, 0 if step.is_prefill else 2),
            "draft_read_slots": (rows,),
            "draft_write_slots": (rows,),
            "previous_rows": (rows,),
            "state_copies": (0, 2),
            "block_copies": (0, 2),
            "zero_state_slots": (0,),
        }
        assert {name: getattr(plan, name).shape for name in shapes} == shapes
        assert plan.previous_rows.tolist() == [-1] * rows
        assert plan.window_valid_start.tolist() == [0] * rows
        assert outcome.token_offsets.shape == (rows + 1,)
        assert outcome.num_output_tokens.shape == outcome.finish_reasons.shape == (rows,)
        assert outcome.num_verified.shape == outcome.num_accepted.shape == (rows,)
        assert outcome.verified_confidences.shape == (rows, 2)
        assert outcome.completed_ids.shape == (0,)


def test_a_plan_keeps_its_arrays_while_the_scheduler_moves_on(core: Core) -> None:
    driver = Driver(core, draft_length=3, tail_length=3)
    driver.add(20, accept=(1, 2))
    plans: list[StepPlan] = []
    copies = []
    for _ in range(8):
        plan = driver.plan()
        plans.append(plan)
        copies.append({name: array.copy() for name, array in arrays(plan).items()})
        driver.finish(plan)
    for plan, before in zip(plans, copies, strict=True):
        for name, array in arrays(plan).items():
            assert np.array_equal(array, before[name]), name


def test_the_result_arrays_may_be_reused_by_the_caller(core: Core) -> None:
    driver = Driver(core, draft_length=2)
    driver.add(5, confidence=0.5)
    driver.step()
    plan = driver.plan()
    result = sample(plan, driver.scripts, 2)
    driver.scheduler.process(result)
    result.draft_token_ids[:] = 3
    result.confidences[:] = 0.9
    step = driver.step()
    assert step.plan.draft_token_ids.tolist() == [[7, 7]]
    assert step.outcome.verified_confidences.tolist() == [[0.5, 0.5]]


def misaligned(values: Any) -> Any:
    """The same elements, one byte off their natural address."""
    array = np.ascontiguousarray(values)
    shifted: Any = np.ndarray(array.shape, array.dtype, bytearray(array.nbytes + 1), offset=1)
    shifted[...] = array
    return shifted


def test_arrays_may_be_misaligned(core: Core) -> None:
    driver = Driver(core, draft_length=2)
    prompt = misaligned(np.arange(2, 40, dtype=np.int64))
    assert prompt.flags.c_contiguous
    assert not prompt.flags.aligned
    sequence_id = add(driver.scheduler, prompt, max_tokens=100)
    driver.scripts[sequence_id] = Script(None, [1], None, 0.5)
    plan = driver.plan()
    assert plan.token_ids.tolist() == prompt.tolist()
    driver.finish(plan)
    plan = driver.plan()
    result = sample(plan, driver.scripts, 2)
    fields = ("sampled_token_ids", "accepted_token_ids", "draft_token_ids", "confidences")
    shifted = dataclasses.replace(result, **{name: misaligned(getattr(result, name)) for name in fields})
    outcome = driver.scheduler.process(shifted)
    expected = [int(result.accepted_token_ids[0, 0]), int(result.sampled_token_ids[0])]
    assert outcome.token_ids.tolist() == expected
    assert driver.plan().draft_token_ids.tolist() == result.draft_token_ids.tolist()


def test_the_pools_are_block_allocators_of_the_given_size(core: Core) -> None:
    scheduler = core.scheduler(num_blocks=20, num_state_slots=7)
    assert isinstance(scheduler.blocks, BlockAllocator)
    assert isinstance(scheduler.state_slots, BlockAllocator)
    assert (scheduler.blocks.capacity, scheduler.state_slots.capacity) == (20, 7)
    assert (scheduler.blocks.num_free, scheduler.state_slots.num_free) == (19, 6)


def test_a_pinned_block_outlives_its_sequence(core: Core) -> None:
    driver = Driver(core)
    driver.add(5, max_tokens=1)
    (block,) = driver.step().plan.block_ids.tolist()
    driver.scheduler.blocks.pin([block])
    driver.run()
    assert driver.scheduler.blocks.num_free == 63
    driver.scheduler.blocks.release([block])
    assert driver.scheduler.blocks.num_free == 64


def test_a_held_sequence_keeps_its_memory_until_it_is_released_alone(core: Core) -> None:
    driver = Driver(core)
    held, other = driver.add(20, max_tokens=1), driver.add(20, max_tokens=1)
    driver.step()
    driver.scheduler.hold(held)
    driver.run()
    assert driver.scheduler.blocks.num_free == 62
    assert set(driver.scheduler.debug_state()["sequences"]) == {held}
    assert not driver.scheduler.has_unfinished
    driver.scheduler.release_one(other)
    driver.scheduler.release_one(held)
    assert driver.scheduler.blocks.num_free == 64
    driver.scheduler.release_one(held)
    assert driver.scheduler.blocks.num_free == 64
    assert driver.scheduler.debug_state()["sequences"] == {}


def test_a_hold_that_ends_early_leaves_the_memory_to_its_step(core: Core) -> None:
    driver = Driver(core)
    sequence = driver.add(20, max_tokens=3)
    driver.step()
    driver.scheduler.hold(sequence)
    driver.scheduler.release_one(sequence)
    assert driver.scheduler.blocks.num_free == 62
    assert driver.step().ids == [sequence]
    driver.run()
    assert driver.scheduler.blocks.num_free == 64


def test_a_sequence_that_is_gone_cannot_be_held(core: Core) -> None:
    driver = Driver(core)
    sequence = driver.add(5, max_tokens=1)
    driver.run()
    with pytest.raises(ValueError, match=f"sequence {sequence}"):
        driver.scheduler.hold(sequence)
    with pytest.raises(ValueError, match="sequence 99"):
        driver.scheduler.hold(99)
    driver.scheduler.release_one(99)


def test_a_step_is_released_once_and_only_after_it_was_planned(core: Core) -> None:
    driver = Driver(core)
    driver.add(5, max_tokens=1)
    driver.step()
    plan = driver.plan()
    with pytest.raises(ValueError, match=f"step {plan.step + 1}"):
        driver.scheduler.release(plan.step + 1)
    with pytest.raises(ValueError, match="step -1"):
        driver.scheduler.release(-1)
    driver.finish(plan)
    driver.scheduler.release(plan.step)
    assert driver.scheduler.blocks.num_free == 64


def test_setting_a_sequence_schedulable_that_is_gone_does_nothing(core: Core) -> None:
    driver = Driver(core)
    sequence = driver.add(5, max_tokens=1)
    driver.run()
    driver.scheduler.set_schedulable(sequence)
    driver.scheduler.set_schedulable(12345)
    assert not driver.scheduler.has_unfinished


def test_a_plan_that_waits_for_its_result_counts_as_unfinished(core: Core) -> None:
    driver = Driver(core)
    assert not driver.scheduler.has_unfinished
    driver.add(5)
    plan = driver.plan()
    assert driver.waiting == driver.running == []
    assert driver.scheduler.has_unfinished
    driver.finish(plan)
    assert driver.scheduler.has_unfinished


def test_the_local_vote_runs_a_request_to_its_end(core: Core) -> None:
    driver = Driver(core)
    driver.add(5, max_tokens=3)
    kinds = []
    while driver.scheduler.has_unfinished:
        plan = plan_step(driver.scheduler)
        kinds.append(plan.kind)
        driver.finish(plan)
    assert kinds == [StepKind.PREFILL, StepKind.DECODE, StepKind.DECODE, StepKind.DECODE]


def test_the_local_vote_decodes_when_a_wanted_prefill_finds_no_memory(core: Core) -> None:
    driver = Driver(core, small_config(prefill_interval_all=1), num_blocks=11)
    first = driver.add(100)
    while first not in driver.running:
        driver.step()
    driver.add(60)
    step = driver.step()
    assert step.ids == [first]
    assert not step.is_prefill


def test_debug_state_is_made_of_plain_values(core: Core) -> None:
    driver = Driver(core, draft_length=1)
    driver.add(100)
    driver.step()
    state = driver.scheduler.debug_state()
    assert state == {
        "step": 1,
        "decode_step": 0,
        "waiting": [0],
        "prompted": [],
        "running": [],
        "free_blocks": list(range(8, 65)),
        "free_state_slots": list(range(2, 11)),
        "free_draft_slots": list(range(1, 9)),
        "num_preempted": 0,
        "num_aborted": 0,
        "sequences": {
            0: {
                "status": 0,
                "len": 100,
                "prompt_len": 100,
                "num_computed": 64,
                "total_inflight": 0,
                "last_inflight": 0,
                "blocks": [1, 2, 3, 4, 5, 6, 7],
                "state_slot": 1,
                "draft_slot": 0,
                "has_draft_info": False,
                "num_drafts": 0,
                "schedule_count": 1,
                "process_count": 1,
                "structured_status": 0,
                "is_schedulable": True,
            }
        },
    }
