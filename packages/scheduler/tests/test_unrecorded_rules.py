"""Rules that the recorded traces would not notice if they were broken.

More of them stand with their subjects: the watermark in test_step_vote.py, checkpoints in test_prefill.py, the reserve
of prompt rows in test_planning_ahead.py, the arithmetic of the budget in test_verify_budget.py.
"""

import pytest
from scheduler_testing.async_driver import AsyncDriver, async_config
from scheduler_testing.cores import Core, load_core, small_config
from scheduler_testing.driver import Driver

from thalweg.interfaces import SequenceStatus
from thalweg.scheduler.reference.memory import Memory

IGNORED, LENGTH_CAPPED = SequenceStatus.FINISHED_IGNORED, SequenceStatus.FINISHED_LENGTH_CAPPED


@pytest.mark.parametrize(("length", "runs"), [(16, True), (17, False), (20, False)])
def test_a_prompt_may_take_every_block_but_the_null_one(core: Core, length: int, runs: bool) -> None:
    """Five blocks, of which four can be owned; a prompt of five blocks would fit a pool without the null block."""
    driver = Driver(core, num_blocks=5, block_size=4)
    sequence = driver.add(length, max_tokens=1)
    step = driver.step()
    assert step.ids == ([sequence] if runs else [])
    assert step.closed == ([] if runs else [(sequence, IGNORED, 0)])


@pytest.mark.parametrize(("limit", "served"), [(40, [30]), (44, [30]), (45, [30, 15])])
def test_the_limit_of_touched_tokens_may_be_reached_but_not_passed(core: Core, limit: int, served: list[int]) -> None:
    config = small_config(max_model_len=40, prefill_max_sum_seqlen_k=limit)
    driver = Driver(core, config)
    driver.add(30)
    driver.add(15)
    assert driver.step().plan.context_lengths.tolist() == served


def test_a_chunk_counts_its_whole_prompt_against_the_touched_tokens(core: Core) -> None:
    """12 + 40 tokens are touched, though the step computes only 12 + 20 of them."""
    for limit, served in ((51, [12]), (52, [12, 20])):
        driver = Driver(core, small_config(max_num_batched_tokens=32, max_model_len=40, prefill_max_sum_seqlen_k=limit))
        driver.add(12)
        driver.add(40)
        assert driver.step().plan.query_lengths.tolist() == served


@pytest.mark.parametrize(
    ("max_model_len", "max_tokens", "num_output"),
    [(10, 50, 3), (10, 4, 3), (10, 3, 3), (10, 2, 2), (100, 4, 4)],
)
def test_whichever_length_limit_comes_first_cuts_an_accepted_run(
    core: Core, max_model_len: int, max_tokens: int, num_output: int
) -> None:
    """A prompt of 8 tokens, one token from the prefill and five from the first decode step."""
    config = small_config(max_model_len=max_model_len, max_num_batched_tokens=128)
    driver = Driver(core, config, draft_length=4)
    driver.add(8, max_tokens=max_tokens, accept=(4,))
    driver.step()
    step = driver.step()
    assert step.outcome.finish_reasons.tolist() == [LENGTH_CAPPED]
    assert step.outcome.num_output_tokens.tolist() == [num_output]
    assert step.outcome.token_ids.tolist() == list(range(101, 100 + num_output))
    assert sum(len(later.closed) for later in driver.run()) == 0


def test_a_checkpoint_that_no_chunk_may_end_at_costs_no_step(core: Core) -> None:
    driver = Driver(core, small_config(lookahead_tokens=4))
    driver.add(30, checkpoints=[2, 10])
    assert [driver.step().plan.query_lengths.tolist() for _ in range(2)] == [[10], [20]]


def test_a_chunk_that_is_refused_for_lack_of_memory_keeps_its_checkpoint(monkeypatch: pytest.MonkeyPatch) -> None:
    """The plain core, where the moment between the check of the memory and its allocation can be caught."""
    driver = Driver(load_core("reference"))
    driver.add(20, checkpoints=[10])
    with monkeypatch.context() as patch:
        patch.setattr(Memory, "start", lambda self, sequence: False)
        assert driver.step().ids == []
    assert [driver.step().plan.query_lengths.tolist() for _ in range(2)] == [[10], [10]]


def query_lengths_of(driver: Driver, num_steps: int) -> list[list[int]]:
    return [driver.decode().plan.query_lengths.tolist() for _ in range(num_steps)]


def test_of_equally_good_budgets_the_smaller_one_is_taken(core: Core) -> None:
    """One token in 10 ms is as good as 1.5 in 15 ms; a bit less than 15 ms would tip it."""
    for milliseconds, length in ((15.0, 1), (14.9, 2)):
        driver = Driver(core, draft_length=1)
        driver.scheduler.set_step_time_curve([(1, 10.0), (2, milliseconds), (8, 1000.0)])
        driver.add(5, confidence=0.5)
        driver.step()
        # The second round's budget knows only that there are drafts; the third knows how likely they are.
        assert query_lengths_of(driver, 3)[2] == [length]


def test_expected_tokens_are_summed_in_single_precision(core: Core) -> None:
    """One in 2^25 is lost beside one token, and a draft that adds nothing is not verified, not even for free."""
    for confidence, length in ((2.0**-25, 1), (2.0**-20, 2)):
        driver = Driver(core, draft_length=1)
        driver.scheduler.set_step_time_curve([(8, 10.0)])
        driver.add(5, confidence=confidence)
        driver.step()
        assert query_lengths_of(driver, 3)[2] == [length]


def test_what_a_step_adds_is_summed_best_first(core: Core) -> None:
    """Small survivals vanish one by one beside the anchors' tokens; summed among themselves they would have counted."""
    driver = Driver(core, draft_length=3)
    driver.scheduler.set_step_time_curve([(8, 10.0)])
    driver.add(5, confidence=[2.0**-25, 1.0, 1.0])
    driver.step()
    assert query_lengths_of(driver, 3)[2] == [1]


def until_restarted(driver: Driver, victim: int) -> None:
    for _ in range(30):
        if victim in driver.decode().plan.restarted_ids.tolist():
            return
    raise AssertionError("nobody was restarted")


def test_a_recomputed_sequence_has_no_survival_left_from_its_earlier_life(core: Core) -> None:
    """All drafts are certain and verifying them is free, so whoever has drafts verifies them."""
    driver = Driver(core, num_blocks=7, block_size=4, draft_length=1)
    driver.scheduler.set_step_time_curve([(16, 10.0)])
    victim = driver.add(3, confidence=1.0)
    driver.step()
    for _ in range(4):
        driver.decode()
    other = driver.add(14, confidence=1.0, max_tokens=8)
    while not driver.step().is_prefill:
        pass
    until_restarted(driver, victim)
    step = driver.step()
    while step.is_prefill or victim not in step.ids:
        assert driver.scheduler.has_unfinished
        step = driver.step()
    lengths = dict(zip(step.ids, step.plan.query_lengths.tolist(), strict=True))
    assert lengths[victim] == 1
    assert lengths.get(other, 2) == 2


def test_a_slot_of_a_row_found_finished_is_free_before_the_next_decode_step(core: Core) -> None:
    driver = Driver(core, small_config(prefill_interval_all=1), draft_length=1)
    aborted, _ = driver.add(5), driver.add(5)
    driver.step()
    plan = driver.plan_decode()
    driver.scheduler.abort([aborted])
    assert driver.state(aborted)["draft_slot"] == 1
    driver.finish(plan)
    assert driver.scheduler.debug_state()["free_draft_slots"][0] == 1
    driver.add(7)
    step = driver.step()
    assert step.is_prefill
    assert step.plan.draft_write_slots.tolist() == [1]


def test_with_a_step_in_flight_too_a_row_found_finished_frees_its_slot_only_once(core: Core) -> None:
    driver = AsyncDriver(core, async_config(prefill_interval_all=1), draft_length=1)
    aborted, _ = driver.add(5), driver.add(5)
    driver.advance()
    for _ in range(2):
        driver.advance(driver.plan_decode())
    # The first row of the step in flight and of the next one.
    plan = driver.plan_decode()
    driver.scheduler.abort([aborted])
    driver.advance(plan)
    assert sorted(driver.scheduler.debug_state()["free_draft_slots"]) == [1, 3, 4, 5, 6, 7, 8]
    driver.advance(driver.plan_decode())
    assert sorted(driver.scheduler.debug_state()["free_draft_slots"]) == [1, 3, 4, 5, 6, 7, 8]
