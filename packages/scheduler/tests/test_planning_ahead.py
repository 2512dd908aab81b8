"""Asynchronous stepping: a decode step is planned before the result of the one before it is known."""

from typing import Any

import numpy as np
import pytest
from scheduler_testing.async_driver import AsyncDriver, async_config, decoding, output_of
from scheduler_testing.cores import Core, small_config
from scheduler_testing.driver import Driver
from scheduler_testing.sampler import sample

from thalweg.interfaces import StepKind


def test_one_decode_step_may_be_in_flight_but_not_two(core: Core) -> None:
    driver = decoding(core, 5)
    scheduler = driver.scheduler
    first = driver.plan()
    second = driver.plan()
    with pytest.raises(RuntimeError, match=f"step {first.step} has to be processed first"):
        scheduler.begin_step(True)
    driver.launch(first, None)
    driver.flush()
    assert scheduler.begin_step(True).round is not None
    third = scheduler.finish_step(StepKind.DECODE)
    assert third.step == second.step + 1


def test_a_prefill_is_processed_before_anything_else_is_planned(core: Core) -> None:
    driver = AsyncDriver(core)
    driver.add(5)
    plan = driver.plan()
    assert plan.kind == StepKind.PREFILL
    with pytest.raises(RuntimeError, match="processed first"):
        driver.scheduler.begin_step(False)
    driver.launch(plan, None)
    driver.flush()
    driver.scheduler.begin_step(True)


def test_without_asynchronous_scheduling_nothing_may_be_in_flight(core: Core) -> None:
    driver = Driver(core)
    driver.add(5)
    driver.step()
    plan = driver.plan()
    with pytest.raises(RuntimeError, match="processed first"):
        driver.scheduler.begin_step(True)
    with pytest.raises(RuntimeError, match="correct"):
        driver.scheduler.correct(plan.step)
    driver.finish(plan)


def test_results_are_taken_in_the_order_of_the_steps(core: Core) -> None:
    driver = decoding(core, 5)
    first, second = driver.plan(), driver.plan()
    results = [sample(plan, driver.scripts, 3) for plan in (first, second)]
    before = driver.scheduler.debug_state()
    with pytest.raises(ValueError, match=f"step {second.step}.*step {first.step} is due"):
        driver.scheduler.process(results[1])
    assert driver.scheduler.debug_state() == before
    for result in results:
        driver.scheduler.process(result)


def test_a_step_is_corrected_once_and_only_when_the_one_before_it_is_processed(core: Core) -> None:
    driver = decoding(core, 5)
    scheduler = driver.scheduler
    first = driver.plan()
    driver.launch(first, scheduler.correct(first.step))
    second = driver.plan()
    for step in (first.step, second.step):
        with pytest.raises(RuntimeError, match="correct"):
            scheduler.correct(step)
    driver.flush()
    for step in (first.step, second.step + 1, -1):
        with pytest.raises(RuntimeError, match="correct"):
            scheduler.correct(step)
    correction = scheduler.correct(second.step)
    assert correction.is_live.tolist() == [True]
    with pytest.raises(RuntimeError, match="corrected already"):
        scheduler.correct(second.step)
    driver.launch(second, correction)
    driver.flush()
    with pytest.raises(RuntimeError, match="correct"):
        scheduler.correct(second.step)


def test_a_prefill_cannot_be_corrected(core: Core) -> None:
    driver = AsyncDriver(core)
    driver.add(5)
    plan = driver.plan()
    with pytest.raises(RuntimeError, match="correct"):
        driver.scheduler.correct(plan.step)


def test_lengths_are_optimistic_when_planned_and_true_when_corrected(core: Core) -> None:
    driver = decoding(core, 20, accept=(1, 3, 0))
    first = driver.plan()
    assert (first.query_lengths.tolist(), first.context_lengths.tolist()) == ([4], [24])
    driver.advance(first)
    plan, correction, _ = driver.advance()
    assert correction is not None
    # The first step may have kept 1 + 3 tokens; it kept 1 + 1.
    assert (plan.committed_lengths.tolist(), plan.context_lengths.tolist()) == ([21], [28])
    assert (correction.committed_lengths.tolist(), correction.context_lengths.tolist()) == ([23], [26])
    plan, correction, _ = driver.advance()
    assert correction is not None
    assert (plan.committed_lengths.tolist(), plan.context_lengths.tolist()) == ([23], [30])
    assert (correction.committed_lengths.tolist(), correction.context_lengths.tolist()) == ([27], [30])


def test_a_correction_shows_the_anchor_and_the_drafts_that_the_device_has(core: Core) -> None:
    driver = decoding(core, 20, accept=(2,))
    driver.advance()
    plan = driver.plan()
    # Not processed yet: the scheduler still knows the token of the prompt and padding drafts.
    assert plan.tail_token_ids.tolist() == [[100]]
    assert plan.draft_token_ids.tolist() == [[999, 999, 999]]
    assert plan.draft_read_slots.tolist() == [0]
    _, correction, _ = driver.advance(plan)
    assert correction is not None
    assert correction.anchor_token_ids.tolist() == [103]
    assert correction.draft_token_ids.tolist() == [[7, 7, 7]]
    assert correction.draft_read_slots.tolist() == correction.draft_write_slots.tolist() == [1]


@pytest.mark.parametrize("num_rows", [0, 3])
def test_every_array_of_a_correction_has_the_documented_dtype_and_shape(core: Core, num_rows: int) -> None:
    driver = decoding(core, *range(10, 10 + num_rows))
    _, correction, _ = driver.advance(driver.plan_decode())
    assert correction is not None
    for name in correction.__dataclass_fields__:
        array = getattr(correction, name)
        assert array.dtype == (np.bool_ if name == "is_live" else np.int32), name
        assert array.shape == ((num_rows, 3) if name == "draft_token_ids" else (num_rows,)), name
        assert array.flags.c_contiguous, name


def test_a_row_that_is_new_in_a_step_keeps_what_it_was_planned_with(core: Core) -> None:
    config = async_config(engine_type="completion", stop_preempted_request=True)
    driver = AsyncDriver(core, config, draft_length=3)
    driver.load_ready(30, accept=(1,))
    driver.advance()
    fresh = driver.load_ready(20)
    plan, correction, _ = driver.advance()
    assert correction is not None
    assert plan.sequence_ids.tolist() == [0, fresh]
    assert plan.previous_rows.tolist() == [0, -1]
    assert plan.context_lengths.tolist() == [29 + 4 + 4, 19 + 4]
    assert correction.context_lengths.tolist() == [29 + 2 + 4, 19 + 4]
    assert correction.anchor_token_ids[1] == plan.tail_token_ids[1, -1]
    assert correction.draft_token_ids[1].tolist() == [999] * 3
    assert correction.draft_read_slots.tolist() == [1, 0]
    assert correction.draft_write_slots.tolist() == plan.draft_write_slots.tolist() == [1, 2]


def test_after_a_prefill_no_row_has_a_place_in_a_step_in_flight(core: Core) -> None:
    driver = decoding(core, 20, accept=(1,))
    driver.advance()
    driver.add(10)
    while driver.waiting:
        step = driver.advance()
    assert step.plan.kind == StepKind.PREFILL
    assert [each.plan.kind for each in step.processed] == [StepKind.DECODE, StepKind.PREFILL]
    plan, correction, processed = driver.advance()
    assert processed == []
    assert correction is not None
    assert plan.previous_rows.tolist() == [-1, -1]
    assert correction.context_lengths.tolist() == plan.context_lengths.tolist()
    # What the drafter left before the prefill is read now.
    assert plan.draft_read_slots.tolist() == correction.draft_read_slots.tolist() == [1, 0]


def test_the_reserve_of_steps_in_flight_is_gone_when_they_are_processed(core: Core) -> None:
    driver = decoding(core, 20)
    assert driver.state(0)["total_inflight"] == 0
    first = driver.plan()
    assert (driver.state(0)["total_inflight"], driver.state(0)["last_inflight"]) == (4, 4)
    second = driver.plan()
    assert (driver.state(0)["total_inflight"], driver.state(0)["last_inflight"]) == (8, 4)
    driver.launch(first, None)
    driver.flush()
    assert (driver.state(0)["total_inflight"], driver.state(0)["last_inflight"]) == (4, 4)
    driver.launch(second, driver.scheduler.correct(second.step))
    driver.flush()
    assert (driver.state(0)["total_inflight"], driver.state(0)["last_inflight"]) == (0, 0)


def test_a_prefill_reserves_too_and_settles_in_place(core: Core) -> None:
    driver = AsyncDriver(core, draft_length=3)
    driver.add(100)
    plan = driver.plan()
    assert (driver.state(0)["total_inflight"], driver.state(0)["last_inflight"]) == (4, 4)
    driver.advance(plan)
    assert (driver.state(0)["total_inflight"], driver.state(0)["last_inflight"]) == (0, 0)
    assert driver.plan().context_lengths.tolist() == [100]


def test_blocks_reserved_for_a_step_that_kept_less_are_given_back(core: Core) -> None:
    driver = AsyncDriver(core, block_size=4, draft_length=3, num_blocks=30)
    driver.add(7, accept=(0,))
    driver.advance()
    counts = []
    for _ in range(3):
        plan = driver.advance().plan
        counts.append(len(plan.block_ids))
    # 8 + 3 tokens; then 4 more in flight, while the length grows by one.
    assert counts == [3, 4, 4]
    driver.add(9)
    while driver.waiting:
        driver.advance()
    before = {each: driver.state(each) for each in (0, 1)}
    plan = driver.plan_decode()
    counts_now = dict(zip(plan.sequence_ids.tolist(), np.diff(plan.block_offsets).tolist(), strict=True))
    assert counts_now == {each: -(-(before[each]["len"] + 3) // 4) for each in (0, 1)}
    assert len(before[0]["blocks"]) == counts_now[0] + 1
    state = driver.scheduler.debug_state()
    owned = sum(len(sequence["blocks"]) for sequence in state["sequences"].values())
    assert owned + len(state["free_blocks"]) == 29


@pytest.mark.parametrize(("block_size", "draft_length"), [(6, 5), (4, 3), (1, 0), (16, 15)])
def test_a_step_of_a_whole_block_fits_while_another_is_in_flight(
    core: Core, block_size: int, draft_length: int
) -> None:
    driver = AsyncDriver(
        core, async_config(max_num_seqs=2), num_blocks=400, block_size=block_size, draft_length=draft_length
    )
    driver.add(7, accept=(draft_length, 0, 1), max_tokens=60)
    driver.add(9, accept=(0, draft_length), max_tokens=60)
    steps = driver.drain()
    for sequence_id in (0, 1):
        assert output_of(steps, sequence_id) == [100 + index for index in range(60)]
    assert driver.scheduler.blocks.num_free == 399


def test_no_position_lies_beyond_the_buffers_at_the_longest_length(core: Core) -> None:
    config = async_config(max_model_len=40)
    driver = AsyncDriver(core, config, draft_length=5)
    driver.add(40, max_tokens=200)
    driver.add(30, max_tokens=200, accept=(5,))
    steps = driver.drain()
    plans = [step.plan for step in steps]
    for plan in plans:
        for row in range(len(plan.sequence_ids)):
            end = plan.context_lengths[row]
            if plan.kind == StepKind.DECODE:
                end += 6 + 5 - plan.query_lengths[row]
            assert end <= config.runtime_length(5)
    # Longer than allowed by the one token that says so.
    assert len(output_of(steps, 0)) == 1
    assert len(output_of(steps, 1)) == 11


@pytest.mark.parametrize(
    ("lengths", "message"),
    [
        (np.array([4, 4], np.int64), "int64"),
        (np.array([8], np.int32), r"\(1,\)"),
        (np.array([[4, 4]], np.int32), r"\(1, 2\)"),
        (np.array([4, 3], np.int32), "sum to 7"),
        (np.array([4, 5], np.int32), "from 1 to 4"),
        (np.array([0, 8], np.int32), "from 1 to 4"),
        (np.array([-1, 4], np.int32), "from 1 to 4"),
        (np.array([3.0, 5.0], np.float32), "float32"),
    ],
)
def test_verify_lengths_that_do_not_spend_the_tokens_of_the_plan_are_refused(
    core: Core, lengths: Any, message: str
) -> None:
    driver = decoding(core, 20, 18)
    driver.advance()
    plan = driver.plan()
    driver.flush()
    before = driver.scheduler.debug_state()
    with pytest.raises(ValueError, match=message):
        driver.scheduler.correct(plan.step, lengths)
    assert driver.scheduler.debug_state() == before
    assert driver.scheduler.correct(plan.step, np.array([4, 4], np.int32)).query_lengths.tolist() == [4, 4]


def test_the_correction_may_be_left_out(core: Core) -> None:
    """Nothing is lost but the true lengths, which the caller then did not want."""
    driver = decoding(core, 20, accept=(1,))
    for _ in range(4):
        plan = driver.plan()
        driver.flush()
        driver.launch(plan, None)
    assert len(driver.flush()) == 1
    driver.scheduler.begin_step(True)
    driver.scheduler.finish_step(StepKind.DECODE)
    assert driver.state(0)["has_draft_info"] is False


def test_asynchronous_and_synchronous_stepping_produce_the_same_tokens(core: Core) -> None:
    outputs = []
    for is_async in (False, True):
        config = small_config(async_scheduling=is_async)
        driver = AsyncDriver(core, config, num_blocks=24, block_size=8, draft_length=2)
        for length in (30, 7, 50, 12):
            driver.add(length, max_tokens=20, accept=(0, 2, 1))
        steps = driver.drain() if is_async else driver.run()
        outputs.append({index: output_of(steps, index) if is_async else tokens_of(steps, index) for index in range(4)})
    assert outputs[0] == outputs[1]
    assert all(len(tokens) == 20 for tokens in outputs[0].values())


def tokens_of(steps: list[Any], sequence_id: int) -> list[int]:
    tokens: list[int] = []
    for step in steps:
        for row, row_id in enumerate(step.ids):
            if row_id == sequence_id:
                offsets = step.outcome.token_offsets
                tokens += step.outcome.token_ids[offsets[row] : offsets[row + 1]].tolist()
    return tokens
