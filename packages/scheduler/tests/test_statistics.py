"""The numbers that a plan carries for logging."""

from typing import Any

import pytest
from scheduler_testing.cores import Core, small_config
from scheduler_testing.driver import Driver
from scheduler_testing.workload import FLOPS_MODEL

from thalweg.interfaces import StepStats
from thalweg.scheduler.flops import FlopsEstimator


def queues(stats: StepStats) -> dict[str, tuple[int, int]]:
    """Count and prompt tokens of each queue."""
    return {
        "running": (stats.num_running, stats.prompt_tokens_running),
        "waiting": (stats.num_waiting, stats.prompt_tokens_waiting),
        "chunked": (stats.num_chunked, stats.prompt_tokens_chunked),
    }


def test_queues_are_counted_as_the_plan_leaves_them(core: Core) -> None:
    driver = Driver(core)
    for length in (10, 20, 100, 7):
        driver.add(length)
    stats = driver.step().plan.stats
    # Two whole prompts and a chunk are in the step, in no queue.
    assert queues(stats) == {"running": (0, 0), "waiting": (1, 7), "chunked": (0, 0)}
    stats = driver.decode().plan.stats
    assert queues(stats) == {"running": (2, 30), "waiting": (2, 107), "chunked": (1, 100)}
    assert (stats.num_free_blocks, stats.num_free_state_slots) == (64 - 1 - 2 - 7, 7)


def test_prompts_are_counted_by_their_prompt_whatever_they_produced(core: Core) -> None:
    driver = Driver(core, num_blocks=7, block_size=8)
    driver.add(14)
    driver.add(20)
    step = driver.step()
    while not len(step.plan.restarted_ids):
        step = driver.step()
    (victim,) = step.plan.restarted_ids.tolist()
    stats = step.plan.stats
    assert queues(stats)["waiting"] == (1, (14, 20)[victim])
    assert queues(stats)["running"] == (1, (20, 14)[victim])


def test_those_who_are_ready_to_decode_are_counted_apart(core: Core) -> None:
    driver = Driver(core, small_config(max_num_seqs=1))
    for _ in range(3):
        driver.load_ready(20)
    driver.load(30, 16, arrived=False)
    stats = driver.step().plan.stats
    assert stats.num_prompted == 2
    assert queues(stats) == {"running": (1, 19), "waiting": (1, 30), "chunked": (1, 30)}


def test_sums_stay_right_when_waiting_requests_are_aborted(core: Core) -> None:
    driver = Driver(core)
    sequences = [driver.add(length) for length in (100, 20, 30)]
    driver.step()
    driver.scheduler.abort(sequences[:2])
    stats = driver.decode().plan.stats
    assert queues(stats) == {"running": (0, 0), "waiting": (1, 30), "chunked": (0, 0)}
    assert stats.num_aborted == 2
    driver.scheduler.abort(sequences[2:])
    assert queues(driver.decode().plan.stats)["waiting"] == (0, 0)


def test_what_left_running_is_summed_up_once(core: Core) -> None:
    driver = Driver(core)
    driver.add(10, max_tokens=3)
    driver.add(20, max_tokens=3)
    steps = driver.run()
    last = [step.plan.stats for step in steps if len(step.plan.finished_ids)]
    assert len(last) == 1
    stats = last[0]
    assert (stats.num_finished, stats.finished_output_tokens, stats.finished_prompt_tokens) == (2, 6, 30)
    assert stats.finished_output_context == 3 * (1 + 10) + 3 * (1 + 20)
    assert sum(step.plan.stats.num_finished for step in steps) == 2


def test_without_a_model_the_flops_are_zero(core: Core) -> None:
    driver = Driver(core)
    driver.add(10, max_tokens=3)
    assert {step.plan.stats.total_flops for step in driver.run()} == {0.0}


@pytest.mark.parametrize("draft_length", [0, 2])
def test_flops_are_those_of_all_rows(core: Core, draft_length: int) -> None:
    driver = Driver(core, draft_length=draft_length, flops_model=FLOPS_MODEL)
    estimator = FlopsEstimator(FLOPS_MODEL)
    for length in (10, 100, 30):
        driver.add(length, max_tokens=5)
    kinds = set()
    for step in driver.run():
        plan = step.plan
        rows = [
            estimator.estimate(int(query), int(context), step.is_prefill, int(full) if step.is_prefill else -1)
            for query, context, full in zip(
                plan.query_lengths, plan.context_lengths, plan.committed_lengths, strict=True
            )
        ]
        assert plan.stats.attention_flops == sum(row.attention for row in rows)
        assert plan.stats.total_flops == sum(row.total for row in rows)
        kinds.add(step.is_prefill)
    assert kinds == {True, False}


def test_every_number_is_of_its_plain_type(core: Core) -> None:
    driver = Driver(core, flops_model=FLOPS_MODEL)
    driver.add(10)
    stats: Any = driver.step().plan.stats
    for name in StepStats.__dataclass_fields__:
        assert type(getattr(stats, name)) is (float if name.endswith("flops") else int), name
