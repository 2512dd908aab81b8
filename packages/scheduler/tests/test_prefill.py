"""Which prompts a prefill step takes, and how much of each."""

import numpy as np
import pytest
from scheduler_testing.cores import Core, load_core, small_config
from scheduler_testing.driver import Driver

from thalweg.interfaces import SequenceStatus
from thalweg.scheduler.config import Sizes
from thalweg.scheduler.reference.memory import Memory
from thalweg.scheduler.reference.prefill import plan_prefill
from thalweg.scheduler.reference.requests import new_sequence
from thalweg.scheduler.reference.state import State


def chunks(driver: Driver, max_steps: int = 50) -> list[list[int]]:
    """Chunk lengths of the prefill steps until everything waiting is prefilled."""
    seen = []
    for _ in range(max_steps):
        if not driver.waiting:
            return seen
        step = driver.step()
        if step.is_prefill:
            seen.append(step.plan.query_lengths.tolist())
    raise AssertionError("prompts are left waiting")


def test_prompts_share_the_token_budget_in_order_of_arrival(core: Core) -> None:
    driver = Driver(core)
    ids = [driver.add(length) for length in (20, 30, 40)]
    step = driver.step()
    assert step.ids == ids
    assert step.plan.query_lengths.tolist() == [20, 30, 14]
    assert step.plan.num_batched_tokens == 64
    assert driver.waiting == [ids[2]]


def test_all_blocks_of_a_prompt_come_with_its_first_chunk(core: Core) -> None:
    driver = Driver(core)
    sequence = driver.add(100)
    driver.step()
    assert len(driver.state(sequence)["blocks"]) == 7
    assert driver.state(sequence)["num_computed"] == 64


def test_a_step_ends_with_its_first_unfinished_chunk(core: Core) -> None:
    driver = Driver(core)
    driver.add(20, checkpoints=[10])
    driver.add(20)
    assert chunks(driver) == [[10], [10, 20]]


def test_without_chunking_a_prompt_waits_for_a_step_with_room(core: Core) -> None:
    driver = Driver(core, small_config(chunked_prefill=False, max_num_batched_tokens=256))
    for length in (200, 100, 50):
        driver.add(length)
    assert chunks(driver) == [[200], [100, 50]]


def test_the_running_limit_counts_prompts_that_complete_in_this_step(core: Core) -> None:
    driver = Driver(core, small_config(max_num_seqs=2))
    for _ in range(3):
        driver.add(5)
    assert driver.step().plan.query_lengths.tolist() == [5, 5]
    assert not driver.step().is_prefill


def test_a_step_touches_at_most_so_many_prompt_tokens_counted_in_full(core: Core) -> None:
    """prefill_max_sum_seqlen_k: a chunk charges the length of its whole prompt."""
    config = small_config(max_model_len=100, prefill_max_sum_seqlen_k=100)
    driver = Driver(core, config)
    for length in (40, 60, 1):
        driver.add(length)
    assert chunks(driver) == [[40, 24], [36, 1]]
    driver = Driver(core, config)
    for length in (40, 61, 1):
        driver.add(length)
    assert chunks(driver) == [[40], [61, 1]]
    driver = Driver(core, config)
    for length in (100, 1):
        driver.add(length)
    assert chunks(driver) == [[64], [36], [1]]


@pytest.mark.parametrize("policy", ["default", "reference"])
def test_a_prompt_longer_than_the_model_or_the_pool_is_refused_alone(core: Core, policy: str) -> None:
    driver = Driver(core, small_config(policy=policy), num_blocks=9)
    too_long = driver.add(257)
    exactly_the_pool = driver.add(9 * 16)
    one_token_too_many = driver.add(8 * 16 + 1)
    fits = driver.add(8 * 16)
    step = driver.step()
    assert step.ids == [fits]
    assert step.plan.dropped_ids.tolist() == [too_long, exactly_the_pool, one_token_too_many]
    assert step.closed == [(refused, SequenceStatus.FINISHED_IGNORED, 0) for refused in step.plan.dropped_ids]
    assert set(driver.scheduler.debug_state()["sequences"]) == {fits}


def test_a_prompt_may_be_as_long_as_the_model_allows(core: Core) -> None:
    driver = Driver(core)
    sequence = driver.add(256)
    steps = driver.run()
    assert [step.plan.query_lengths.tolist() for step in steps] == [[64]] * 4 + [[]]
    assert steps[3].outcome.finish_reasons.tolist() == [SequenceStatus.FINISHED_LENGTH_CAPPED]
    assert steps[4].plan.finished_ids.tolist() == [sequence]


@pytest.mark.parametrize("pool", ["blocks", "state_slots"])
def test_a_prompt_stays_in_the_queue_when_another_thread_takes_the_memory_first(
    monkeypatch: pytest.MonkeyPatch, pool: str
) -> None:
    """The plain core, where the moment between the check and the allocation can be caught."""
    driver = Driver(load_core("reference"), num_blocks=9)
    sequence = driver.add(40)
    allocator = getattr(driver.scheduler, pool)
    taken = allocator.allocate(allocator.num_free)
    monkeypatch.setattr(Memory, "can_start", lambda self, sequence: True)
    monkeypatch.setattr(Memory, "usage", 0.0)
    assert driver.step().ids == []
    assert driver.waiting == [sequence]
    allocator.release(taken)
    assert driver.step().ids == [sequence]
    assert len(driver.state(sequence)["blocks"]) == 3


def test_a_prompt_with_output_that_outgrew_the_pool_counts_as_preempted() -> None:
    """Decode planning ends such a sequence before it can come here; the rule also holds on its own."""
    config = small_config()
    state = State(config, Sizes.resolve(config, num_blocks=4, num_state_slots=4, block_size=4, vocab_size=1000))
    grown = new_sequence(
        0,
        np.zeros(10, np.int32),
        max_tokens=9,
        eos_token_id=1,
        ignore_eos=False,
        checkpoints=(),
        is_schedulable=True,
        is_structured=False,
    )
    for _ in range(3):
        grown.append(5, max_model_len=256)
    state.waiting.append(grown)
    assert plan_prefill(state).dropped == [grown]
    assert grown.status == SequenceStatus.FINISHED_PREEMPTED


def test_nothing_but_refusals_still_is_a_prefill_step(core: Core) -> None:
    driver = Driver(core)
    driver.add(257)
    step = driver.step()
    assert step.is_prefill
    assert step.ids == []
    assert len(step.closed) == 1
    assert not driver.scheduler.has_unfinished


def test_a_head_that_lacks_memory_stops_those_behind_it(core: Core) -> None:
    driver = Driver(core, num_blocks=9)
    driver.add(100)
    driver.step()
    driver.step()
    driver.add(40)
    driver.add(5)
    assert not any(driver.step().is_prefill for _ in range(8))


def test_a_prompt_waits_for_a_state_slot(core: Core) -> None:
    driver = Driver(core, num_state_slots=3)
    ids = [driver.add(5, max_tokens=3) for _ in range(3)]
    assert driver.step().ids == ids[:2]
    steps = driver.run()
    assert ids[2] in {sequence for step in steps for sequence in step.ids}


def test_an_unschedulable_head_stops_those_behind_it(core: Core) -> None:
    driver = Driver(core)
    first = driver.add(5)
    second = driver.add(5, is_schedulable=False)
    driver.add(5)
    assert driver.step().ids == [first]
    driver.scheduler.set_schedulable(second)
    while not (step := driver.step()).is_prefill:
        pass
    assert len(step.ids) == 2


def test_chunks_are_cut_and_charged_in_multiples_of_the_context_parallel_pieces(core: Core) -> None:
    driver = Driver(core, small_config(max_num_batched_tokens=67), context_parallel_size=2)
    driver.add(5)
    driver.add(90)
    step = driver.step()
    assert step.plan.query_lengths.tolist() == [5, 56]
    assert step.plan.num_batched_tokens == 64


def test_a_half_prefilled_prompt_goes_before_a_preempted_one(core: Core) -> None:
    """Otherwise the preempted one waits for blocks that only the half-prefilled one can give back."""
    driver = Driver(core, small_config(max_num_batched_tokens=16), num_blocks=11, block_size=4)
    victim = driver.add(8)
    half = driver.add(32)
    assert driver.step().plan.query_lengths.tolist() == [8, 8]
    assert driver.decode().plan.restarted_ids.tolist() == [victim]
    assert driver.waiting == [half, victim]
    assert driver.step().ids == [half]


def test_policy_reference_lets_the_preempted_one_block_it(core: Core) -> None:
    config = small_config(max_num_batched_tokens=16, policy="reference")
    driver = Driver(core, config, num_blocks=11, block_size=4)
    victim = driver.add(8)
    half = driver.add(32)
    driver.step()
    assert driver.decode().plan.restarted_ids.tolist() == [victim]
    assert driver.waiting == [victim, half]
    assert not any(driver.step().ids for _ in range(20))


def test_a_prefill_step_drops_aborted_requests_anywhere_in_the_queue(core: Core) -> None:
    driver = Driver(core)
    first = driver.add(100)
    second = driver.add(5)
    driver.scheduler.abort([second])
    step = driver.step()
    assert step.is_prefill
    assert step.ids == [first]
    assert step.plan.dropped_ids.tolist() == [second]
    assert step.closed == [(second, SequenceStatus.FINISHED_ABORTED, 0)]


@pytest.mark.parametrize("policy", ["default", "reference"])
def test_a_chunk_ends_at_each_checkpoint(core: Core, policy: str) -> None:
    driver = Driver(core, small_config(policy=policy))
    driver.add(100, checkpoints=[10, 64, 70, 100])
    assert chunks(driver) == [[10], [54], [6], [30]]


def test_a_checkpoint_that_was_used_does_not_cut_the_prompt_again_when_it_is_recomputed(core: Core) -> None:
    driver = Driver(core, num_blocks=3, block_size=8)
    ids = [driver.add(6, checkpoints=[3]) for _ in range(2)]
    while len(driver.running) < 2:
        driver.step()
    while not (restarted := driver.decode().plan.restarted_ids.tolist()):
        pass
    (survivor,) = set(ids) - set(restarted)
    driver.scheduler.abort([survivor])
    driver.decode()
    assert driver.step().plan.query_lengths.tolist() == [9]


def test_a_checkpoint_is_ignored_when_prompts_are_not_chunked(core: Core) -> None:
    driver = Driver(core, small_config(chunked_prefill=False, max_num_batched_tokens=256))
    driver.add(100, checkpoints=[10])
    assert chunks(driver) == [[100]]


def test_policy_reference_refuses_once_and_loses_the_checkpoint(core: Core) -> None:
    config = small_config(chunked_prefill=False, max_num_batched_tokens=256, policy="reference")
    driver = Driver(core, config)
    driver.add(100, checkpoints=[10])
    assert not driver.step().is_prefill
    assert chunks(driver) == [[100]]


def test_a_checkpoint_too_close_for_a_chunk_is_passed_over(core: Core) -> None:
    driver = Driver(core, small_config(lookahead_tokens=4))
    driver.add(30, checkpoints=[2, 10, 12])
    assert chunks(driver) == [[10], [20]]


def test_a_chunk_is_not_shorter_than_the_lookahead_unless_it_is_the_last(core: Core) -> None:
    driver = Driver(core, small_config(lookahead_tokens=8))
    driver.add(60)
    driver.add(20)
    driver.add(3)
    assert chunks(driver) == [[60], [20, 3]]


def test_policy_reference_never_takes_a_prompt_shorter_than_the_lookahead(core: Core) -> None:
    driver = Driver(core, small_config(lookahead_tokens=8, policy="reference"))
    driver.add(3)
    assert not any(driver.step().ids for _ in range(20))


def test_a_refused_checkpoint_cut_keeps_the_checkpoint(core: Core) -> None:
    """The second prompt finds no room in the first step; its checkpoint must still cut it in the next."""
    driver = Driver(core)
    driver.add(64)
    driver.add(20, checkpoints=[10])
    assert chunks(driver) == [[64], [10], [10]]


def test_a_prompt_row_describes_its_chunk(core: Core) -> None:
    driver = Driver(core, tail_length=3)
    driver.add(list(range(100, 170)))
    first, second = driver.step().plan, driver.step().plan
    assert first.tail_token_ids.tolist() == [[-1, -1, 100]]
    assert first.token_ids.tolist() == list(range(100, 164))
    assert first.next_token_ids.tolist() == [164]
    assert second.tail_token_ids.tolist() == [[162, 163, 164]]
    assert second.token_ids.tolist() == list(range(164, 170))
    assert second.next_token_ids.tolist() == [-1]
    assert (first.context_lengths.tolist(), second.context_lengths.tolist()) == ([64], [70])
    assert first.draft_token_ids.shape == (1, 0)


def test_draft_slots_are_taken_when_a_prompt_completes(core: Core) -> None:
    driver = Driver(core, draft_length=3)
    driver.add(20)
    driver.add(60)
    step = driver.step()
    assert step.plan.draft_write_slots.tolist() == [1, 0]
    assert step.plan.draft_read_slots.tolist() == [0, 0]
    assert driver.step().plan.draft_write_slots.tolist() == [2]
