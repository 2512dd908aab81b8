"""How a scheduler uses its budget: which sequences, in which order, and what it knows of them."""

from typing import Any

import numpy as np
import pytest
from scheduler_testing.async_driver import AsyncDriver, async_config
from scheduler_testing.cores import Core, load_core, small_config
from scheduler_testing.driver import Driver
from scheduler_testing.sampler import sample

from thalweg.interfaces import ConfigError, StepKind

FLAT = [(size, 10.0) for size in (8, 16, 32, 48)]
"""Every token is free: whatever has a chance is verified."""


def with_curve(core: Core, points: Any, **options: Any) -> Driver:
    driver = Driver(core, small_config(**options), draft_length=3)
    driver.scheduler.set_step_time_curve(points)
    return driver


def test_without_a_curve_all_drafts_are_verified(core: Core) -> None:
    driver = Driver(core, draft_length=3)
    driver.add(5, confidence=0.0)
    driver.step()
    assert [driver.step().plan.query_lengths.tolist() for _ in range(3)] == [[4]] * 3


def test_padding_is_not_worth_verifying(core: Core) -> None:
    """Right after the prompt no drafter has run; from then on drafts without confidences count as certain."""
    driver = with_curve(core, FLAT)
    driver.add(5)
    driver.step()
    assert [driver.step().plan.query_lengths.tolist() for _ in range(3)] == [[1], [4], [4]]


def test_a_draft_without_a_chance_is_not_verified_even_if_it_is_free(core: Core) -> None:
    driver = with_curve(core, FLAT)
    driver.add(5)
    driver.scripts[0].confidence = [0.5, 0.0, 0.5]
    driver.step()
    # The budget looks at the round before the last: unknown, then known.
    assert [driver.step().plan.query_lengths.tolist() for _ in range(4)] == [[1], [4], [2], [2]]


def test_who_is_likelier_gets_the_drafts_and_rows_keep_their_order(core: Core) -> None:
    curve = [(4, 10.0), (5, 10.0), (8, 30.0), (48, 200.0)]
    driver = with_curve(core, curve)
    for length, confidence in ((20, 0.2), (10, 0.9)):
        driver.add(length, confidence=confidence)
    driver.step()
    for _ in range(3):
        step = driver.step()
    assert step.ids == [0, 1]
    assert step.plan.num_batched_tokens == 5
    assert step.plan.query_lengths.tolist() == [1, 4]


def test_only_verified_drafts_are_accepted(core: Core) -> None:
    driver = with_curve(core, [(1, 10.0), (2, 10.0), (8, 99.0)])
    driver.add(5, confidence=0.9, accept=(3,))
    driver.step()
    for _ in range(3):
        step = driver.step()
    assert step.plan.query_lengths.tolist() == [2]
    assert (step.outcome.num_verified.tolist(), step.outcome.num_accepted.tolist()) == ([2], [2])
    # A drafter that claims more accepted drafts than were verified is cut off.
    plan = driver.plan()
    result = sample(plan, driver.scripts, 3)
    result.accepted_token_ids[0] = [50, 51, 52]
    outcome = driver.scheduler.process(result)
    assert outcome.token_ids.tolist() == [50, result.sampled_token_ids[0]]


def test_a_recomputed_sequence_starts_without_rates(core: Core) -> None:
    driver = Driver(core, draft_length=1, num_blocks=9, block_size=4)
    driver.scheduler.set_step_time_curve(FLAT)
    for length in (6, 7):
        driver.add(length, confidence=0.9, max_tokens=18)
    while True:
        step = driver.step()
        if len(step.plan.restarted_ids):
            break
    (victim,) = step.plan.restarted_ids.tolist()
    while victim not in driver.running:
        step = driver.step()
    row_lengths = []
    for _ in range(2):
        step = driver.step()
        row_lengths.append(int(step.plan.query_lengths[step.ids.index(victim)]))
    # With its old rates the first step would verify a draft, which is padding again.
    assert row_lengths == [1, 2]


def test_a_step_in_flight_counts_as_a_draft_to_come(core: Core) -> None:
    driver = AsyncDriver(core, draft_length=3)
    driver.scheduler.set_step_time_curve(FLAT)
    driver.add(5)
    driver.scripts[0].confidence = [0.5, 0.0, 0.5]
    driver.advance()
    # Nothing known and nothing in flight; then in flight; then the first processed round says 0.5, 0, 0.
    assert [driver.advance().plan.query_lengths.tolist() for _ in range(4)] == [[1], [4], [2], [2]]


def test_the_device_may_distribute_the_tokens_of_a_step_anew(core: Core) -> None:
    driver = AsyncDriver(core, draft_length=3)
    driver.scheduler.set_step_time_curve([(2, 10.0), (4, 10.0), (8, 90.0)])
    for length in (20, 10):
        driver.add(length, confidence=0.5, accept=(3,), max_tokens=40)
    while len(driver.running) < 2:
        driver.advance()
    for _ in range(3):
        driver.advance()
    plan = driver.plan()
    assert plan.num_batched_tokens == 4
    driver.flush()
    lengths = np.array([1, 3], np.int32)
    correction = driver.scheduler.correct(plan.step, lengths)
    assert correction.query_lengths.tolist() == [1, 3]
    computed = [driver.state(each)["num_computed"] for each in plan.sequence_ids.tolist()]
    assert correction.context_lengths.tolist() == [computed[0] + 1, computed[1] + 3]
    driver.launch(plan, correction)
    (taken,) = driver.flush()
    assert taken.outcome.num_verified.tolist() == [1, 3]
    assert taken.outcome.num_accepted.tolist() == [1, 3]


@pytest.mark.parametrize(
    "points",
    [
        [],
        [(16, 1.0), (8, 2.0)],
        [(8, 1.0), (8, 2.0)],
        [(0, 1.0), (8, 2.0)],
        [(8, 0.0)],
        [(8, -1.0)],
        [(8, float("nan"))],
        [(8, float("inf"))],
        [(1, 1.0), (7, 2.0)],
    ],
)
def test_a_curve_that_cannot_be_used_is_refused_and_the_old_one_stays(core: Core, points: Any) -> None:
    driver = with_curve(core, [(1, 10.0), (2, 10.0), (8, 99.0)])
    with pytest.raises(ValueError, match=r"curve|points"):
        driver.scheduler.set_step_time_curve(points)
    driver.add(5, confidence=0.9)
    driver.step()
    assert [driver.step().plan.query_lengths.tolist() for _ in range(3)] == [[1], [2], [2]]


def test_a_curve_must_hold_one_token_of_everybody_who_may_run(core: Core) -> None:
    driver = Driver(core, small_config(max_num_seqs=9), draft_length=3, num_state_slots=12)
    with pytest.raises(ConfigError, match=r"8.*max_num_seqs, 9"):
        driver.scheduler.set_step_time_curve([(8, 1.0)])
    driver.scheduler.set_step_time_curve([(9, 1.0)])


@pytest.mark.parametrize(
    ("num_rows", "graph_size", "forward_ms", "sampler_ms"),
    [
        (0, 8, 1.0, 1.0),
        (1, 0, 1.0, 1.0),
        (1, 8, -1.0, 1.0),
        (1, 8, 1.0, -1.0),
        (1, 8, float("nan"), 1.0),
        (1, 8, 1.0, float("inf")),
    ],
)
def test_a_step_time_that_cannot_be_is_refused(
    core: Core, num_rows: int, graph_size: int, forward_ms: float, sampler_ms: float
) -> None:
    driver = with_curve(core, FLAT)
    with pytest.raises(ValueError, match=r"num_rows|graph_size|forward_ms|sampler_ms"):
        driver.scheduler.record_step_time(num_rows, graph_size, forward_ms, sampler_ms)


def test_measured_steps_make_verification_shorter(core: Core) -> None:
    driver = with_curve(core, [(1, 10.0), (2, 10.1), (4, 10.2), (8, 10.3)])
    driver.add(5, confidence=0.6)
    driver.step()
    for _ in range(3):
        step = driver.step()
    assert step.plan.query_lengths.tolist() == [4]
    for graph_size, base_ms in ((1, 10.0), (2, 10.1), (4, 10.2), (8, 10.3)):
        for _ in range(12):
            driver.scheduler.record_step_time(1, graph_size, base_ms + 50.0 * graph_size, 0.0)
    assert driver.step().plan.query_lengths.tolist() == [1]


@pytest.mark.parametrize("value", [float("nan"), -0.5, 1.5, float("inf")])
def test_a_confidence_that_is_no_probability_is_refused_before_anything_changes(core: Core, value: float) -> None:
    driver = with_curve(core, FLAT)
    driver.add(5, confidence=0.5)
    driver.step()
    plan = driver.plan()
    result = sample(plan, driver.scripts, 3)
    result.confidences[0, 1] = value
    before = driver.scheduler.debug_state()
    with pytest.raises(ValueError, match="confidences"):
        driver.scheduler.process(result)
    assert driver.scheduler.debug_state() == before
    result.confidences[0, 1] = 1.0
    driver.scheduler.process(result)


def test_the_plain_core_needs_somebody_to_decide() -> None:
    scheduler = load_core("reference").Scheduler(
        async_config(), num_blocks=9, num_state_slots=4, block_size=16, vocab_size=10
    )
    with pytest.raises(ConfigError, match="verify_budget is None"):
        scheduler.set_step_time_curve(FLAT)
    scheduler.record_step_time(1, 8, 1.0, 1.0)
    scheduler.begin_step(False)
    assert len(scheduler.finish_step(StepKind.DECODE).sequence_ids) == 0
