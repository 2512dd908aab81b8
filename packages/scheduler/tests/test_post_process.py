"""What a result does to the sequences of its step."""

import numpy as np
import pytest
from scheduler_testing.cores import Core, small_config
from scheduler_testing.driver import Driver, Step
from scheduler_testing.sampler import sample

from thalweg.interfaces import SequenceStatus, StepResult

STOPPED, LENGTH_CAPPED = SequenceStatus.FINISHED_STOPPED, SequenceStatus.FINISHED_LENGTH_CAPPED


def tokens(step: Step, row: int = 0) -> list[int]:
    offsets = step.outcome.token_offsets
    new: list[int] = step.outcome.token_ids[offsets[row] : offsets[row + 1]].tolist()
    return new


def test_only_the_last_chunk_of_a_prompt_yields_a_token(core: Core) -> None:
    driver = Driver(core)
    driver.add(70)
    first, second = driver.step(), driver.step()
    assert (tokens(first), tokens(second)) == ([], [100])
    assert first.outcome.num_output_tokens.tolist() == [0]
    assert second.outcome.num_output_tokens.tolist() == [1]
    assert (first.outcome.num_verified.tolist(), first.outcome.num_accepted.tolist()) == ([0], [0])
    assert (second.outcome.num_verified.tolist(), second.outcome.num_accepted.tolist()) == ([1], [1])


def test_accepted_drafts_come_before_the_sampled_token(core: Core) -> None:
    driver = Driver(core, draft_length=3)
    driver.add(5, accept=(2, 0, 3))
    driver.step()
    steps = [driver.step() for _ in range(3)]
    assert [tokens(step) for step in steps] == [[101, 102, 103], [104], [105, 106, 107, 108]]
    assert [step.outcome.num_accepted.tolist() for step in steps] == [[3], [1], [4]]
    assert [step.outcome.num_verified.tolist() for step in steps] == [[4], [4], [4]]
    assert [step.plan.committed_lengths.tolist() for step in steps] == [[6], [9], [10]]
    assert [step.plan.context_lengths.tolist() for step in steps] == [[9], [12], [13]]


def test_an_eos_inside_the_accepted_drafts_cuts_the_rest_but_not_the_accepted_count(core: Core) -> None:
    driver = Driver(core, draft_length=3)
    driver.add(5, accept=(3,), eos_at=3)
    driver.step()
    step = driver.step()
    assert tokens(step) == [101, 1]
    assert step.outcome.finish_reasons.tolist() == [STOPPED]
    assert step.outcome.num_accepted.tolist() == [4]
    assert step.outcome.num_output_tokens.tolist() == [3]


def test_an_ignored_eos_is_a_token_like_any_other(core: Core) -> None:
    driver = Driver(core)
    driver.add(5, eos_at=2, ignore_eos=True, max_tokens=3)
    steps = driver.run()
    assert [tokens(step) for step in steps if step.ids] == [[100], [1], [102]]
    assert steps[2].outcome.finish_reasons.tolist() == [LENGTH_CAPPED]


def test_an_eos_wins_over_the_length_limits(core: Core) -> None:
    driver = Driver(core)
    driver.add(5, eos_at=2, max_tokens=2)
    driver.step()
    assert driver.step().outcome.finish_reasons.tolist() == [STOPPED]


def test_a_sequence_ends_one_token_beyond_the_model_length(core: Core) -> None:
    driver = Driver(core, small_config(max_model_len=10, max_num_batched_tokens=32))
    driver.add(8, max_tokens=50)
    steps = [step for step in driver.run() if step.ids]
    assert [step.outcome.finish_reasons.tolist() for step in steps] == [[0], [0], [LENGTH_CAPPED]]
    assert steps[-1].outcome.num_output_tokens.tolist() == [3]


def test_max_tokens_inside_the_accepted_drafts_cuts_the_rest(core: Core) -> None:
    driver = Driver(core, draft_length=3)
    driver.add(5, accept=(3,), max_tokens=3)
    driver.step()
    step = driver.step()
    assert tokens(step) == [101, 102]
    assert step.outcome.finish_reasons.tolist() == [LENGTH_CAPPED]


def test_a_finished_sequence_gives_its_draft_slot_back_at_once_and_its_memory_with_the_next_decode(core: Core) -> None:
    driver = Driver(core, draft_length=1)
    sequence = driver.add(5, max_tokens=2)
    driver.step()
    driver.step()
    assert driver.scheduler.debug_state()["free_draft_slots"][0] == 1
    assert driver.running == [sequence]
    assert driver.scheduler.has_unfinished
    assert not driver.scheduler.has_running
    plan = driver.plan()
    assert plan.finished_ids.tolist() == [sequence]
    assert driver.scheduler.blocks.num_free == 63
    driver.scheduler.release(plan.step)
    assert driver.scheduler.blocks.num_free == 64
    assert driver.finish(plan).closed == []
    assert not driver.scheduler.has_unfinished


def test_the_confidences_reported_are_those_of_the_drafts_just_verified(core: Core) -> None:
    driver = Driver(core, draft_length=2)
    sequence = driver.add(5, confidence=0.25)
    prefill = driver.step()
    first = driver.step()
    driver.scripts[sequence].confidence = 0.75
    second, third = driver.step(), driver.step()
    assert np.isnan(prefill.outcome.verified_confidences).tolist() == [[True, True]]
    assert np.isnan(first.outcome.verified_confidences).all()
    assert second.outcome.verified_confidences.tolist() == [[0.25, 0.25]]
    assert third.outcome.verified_confidences.tolist() == [[0.75, 0.75]]


def test_unknown_confidences_are_reported_as_none(core: Core) -> None:
    driver = Driver(core, draft_length=2)
    driver.add(5)
    for _ in range(3):
        assert np.isnan(driver.step().outcome.verified_confidences).all()


def test_a_restart_forgets_drafts_and_confidences(core: Core) -> None:
    driver = Driver(core, small_config(policy="reference"), num_blocks=3, draft_length=2)
    victim = driver.add(5, confidence=0.5)
    driver.step()
    driver.step()
    other = driver.add(5, confidence=0.5, max_tokens=2)
    while victim not in driver.waiting:
        driver.step()
    assert driver.state(victim)["num_drafts"] == 0
    assert not driver.state(victim)["has_draft_info"]
    while not (step := driver.step()).ids or step.ids == [other] or step.is_prefill:
        pass
    assert step.ids == [victim]
    assert step.plan.draft_token_ids.tolist() == [[999, 999]]
    assert np.isnan(step.outcome.verified_confidences).all()


def test_a_failed_grammar_ends_the_request_without_a_token(core: Core) -> None:
    driver = Driver(core, draft_length=1)
    failing = driver.add(5, is_structured=True, fails_at=2)
    other = driver.add(6)
    driver.step()
    driver.step()
    step = driver.step()
    row = step.ids.index(failing)
    assert step.outcome.finish_reasons[row] == SequenceStatus.FINISHED_STRUCTURED_FAILED
    assert tokens(step, row) == []
    assert step.outcome.num_output_tokens[row] == 2
    assert (step.outcome.num_verified[row], step.outcome.num_accepted[row]) == (0, 0)
    after = driver.decode()
    assert after.plan.finished_ids.tolist() == [failing]
    assert after.closed == []
    assert after.ids == [other]


def test_policy_reference_stores_a_zero_and_reports_the_sampled_token(core: Core) -> None:
    driver = Driver(core, small_config(policy="reference"))
    failing = driver.add(5, is_structured=True, fails_at=1)
    driver.step()
    step = driver.step()
    assert step.outcome.finish_reasons.tolist() == [SequenceStatus.FINISHED_STRUCTURED_FAILED]
    assert tokens(step) == [101]
    assert step.outcome.num_output_tokens.tolist() == [2]
    assert driver.state(failing)["len"] == 7


def with_status(driver: Driver, status: int | None) -> Step:
    """One step whose only row gets this structured status; None gives no list at all."""
    plan = driver.plan()
    result = sample(plan, driver.scripts, driver.draft_length)
    row_status = None if status is None else np.full(len(plan.sequence_ids), status, np.int8)
    result = StepResult(
        step=result.step,
        sampled_token_ids=result.sampled_token_ids,
        accepted_token_ids=result.accepted_token_ids,
        draft_token_ids=result.draft_token_ids,
        confidences=result.confidences,
        row_status=row_status,
    )
    return Step(plan, driver.scheduler.process(result))


def test_a_stored_grammar_status_stays_until_the_sampler_gives_another(core: Core) -> None:
    driver = Driver(core)
    sequence = driver.add(5, is_structured=True)
    assert driver.state(sequence)["structured_status"] == 1
    seen = []
    for status in (None, 2, None, 0, None):
        with_status(driver, status)
        seen.append(driver.state(sequence)["structured_status"])
    assert seen == [1, 2, 2, 0, 0]


def test_a_grammar_that_fails_during_a_chunk_ends_the_request_when_its_prompt_ends(core: Core) -> None:
    driver = Driver(core)
    driver.add(100, is_structured=True)
    assert with_status(driver, -1).outcome.finish_reasons.tolist() == [0]
    step = with_status(driver, None)
    assert step.outcome.finish_reasons.tolist() == [SequenceStatus.FINISHED_STRUCTURED_FAILED]
    assert tokens(step) == []


def result_for(plan_step: int, num_rows: int, width: int, **changes: object) -> StepResult:
    fields = {
        "step": plan_step,
        "sampled_token_ids": np.full(num_rows, 5, np.int32),
        "accepted_token_ids": np.full((num_rows, width), -1, np.int32),
        "draft_token_ids": np.full((num_rows, width), 7, np.int32),
        "confidences": np.zeros((num_rows, width), np.float32),
        "row_status": None,
    }
    return StepResult(**(fields | changes))  # type: ignore[arg-type]


@pytest.mark.parametrize(
    ("field", "value"),
    [
        ("step", 0),
        ("step", 2),
        ("sampled_token_ids", np.zeros(1, np.int32)),
        ("sampled_token_ids", np.zeros((2, 1), np.int32)),
        ("sampled_token_ids", np.zeros(2, np.float32)),
        ("accepted_token_ids", np.zeros((2, 1), np.int32)),
        ("accepted_token_ids", np.zeros((1, 2), np.int32)),
        ("draft_token_ids", np.zeros((2, 0), np.int32)),
        ("draft_token_ids", np.zeros((3, 2), np.int32)),
        ("confidences", np.zeros((2, 1), np.float32)),
        ("confidences", np.zeros((2, 2), np.int32)),
        ("row_status", np.zeros(3, np.int8)),
        ("row_status", np.zeros(2, np.float32)),
    ],
)
def test_a_result_of_the_wrong_step_or_shape_is_refused_and_changes_nothing(
    core: Core, field: str, value: object
) -> None:
    driver = Driver(core, draft_length=2)
    driver.add(5)
    driver.add(5)
    driver.step()
    plan = driver.plan()
    before = driver.scheduler.debug_state()
    with pytest.raises(ValueError, match=field):
        driver.scheduler.process(result_for(plan.step, 2, 2, **{field: value}))
    assert driver.scheduler.debug_state() == before
    outcome = driver.scheduler.process(result_for(plan.step, 2, 2))
    assert outcome.token_ids.tolist() == [5, 5]


def test_a_prefill_result_has_no_draft_columns(core: Core) -> None:
    driver = Driver(core, draft_length=2)
    driver.add(5)
    plan = driver.plan()
    with pytest.raises(ValueError, match="accepted_token_ids"):
        driver.scheduler.process(result_for(plan.step, 1, 2))


def test_a_step_is_processed_once(core: Core) -> None:
    driver = Driver(core)
    driver.add(5)
    plan = driver.plan()
    driver.finish(plan)
    with pytest.raises(ValueError, match="step"):
        driver.scheduler.process(result_for(plan.step, 1, 0))
