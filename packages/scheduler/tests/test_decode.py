"""Who takes part in a decode step, in which order, and who gives way when blocks run out."""

import pytest
from scheduler_testing.cores import Core, small_config
from scheduler_testing.driver import Driver

from thalweg.interfaces import SequenceStatus


def test_everybody_running_decodes_one_token_and_all_drafts(core: Core) -> None:
    driver = Driver(core, draft_length=3)
    first, second = driver.add(5), driver.add(9)
    driver.step()
    plan = driver.plan()
    assert plan.sequence_ids.tolist() == [second, first]
    assert plan.query_lengths.tolist() == [4, 4]
    assert plan.context_lengths.tolist() == [13, 9]
    assert plan.num_batched_tokens == 8
    assert plan.token_ids.size == plan.next_token_ids.size == 0


def test_longer_sequences_come_first_and_ties_are_kept_in_serving_order(core: Core) -> None:
    """Serving goes from the end of running, and a stable sort keeps it: equal rows swap ends in every step."""
    driver = Driver(core, small_config(max_num_seqs=40, max_num_batched_tokens=200), num_state_slots=50)
    short = [driver.add(4) for _ in range(20)]
    long = [driver.add(6) for _ in range(20)]
    driver.step()
    assert driver.decode().ids == long[::-1] + short[::-1]
    assert driver.decode().ids == long + short
    assert driver.running == long + short


def test_the_first_decode_after_a_prompt_verifies_padding_and_reads_no_draft_slot(core: Core) -> None:
    driver = Driver(core, draft_length=2)
    driver.add(5)
    driver.step()
    first, second = driver.step().plan, driver.step().plan
    assert first.draft_token_ids.tolist() == [[999, 999]]
    assert first.draft_read_slots.tolist() == [0]
    assert first.draft_write_slots.tolist() == [1]
    assert second.draft_token_ids.tolist() == [[7, 7]]
    assert second.draft_read_slots.tolist() == [1]


def test_a_decode_row_shows_its_last_tokens(core: Core) -> None:
    driver = Driver(core, tail_length=4)
    driver.add([11, 12])
    driver.step()
    assert driver.step().plan.tail_token_ids.tolist() == [[-1, 11, 12, 100]]
    assert driver.step().plan.tail_token_ids.tolist() == [[11, 12, 100, 101]]


def test_a_sequence_gains_a_block_when_its_tokens_and_drafts_need_one(core: Core) -> None:
    driver = Driver(core, block_size=8, draft_length=3)
    sequence = driver.add(4)
    driver.step()
    owned = []
    for _ in range(6):
        driver.step()
        owned.append(len(driver.state(sequence)["blocks"]))
    # 5, 6, ... committed tokens and three drafts.
    assert owned == [1, 2, 2, 2, 2, 2]


def crowd(core: Core, **options: object) -> tuple[Driver, int, int]:
    """Two sequences fill a pool of six blocks; the next step needs a seventh for the shorter output."""
    driver = Driver(core, small_config(**options), num_blocks=7, block_size=4)
    long_output = driver.add(3)
    driver.step()
    for _ in range(4):
        driver.step()
    short_output = driver.add(15)
    while not driver.step().is_prefill:
        pass
    return driver, long_output, short_output


def run_until_preemption(driver: Driver) -> list[int]:
    for _ in range(20):
        step = driver.decode()
        if len(step.plan.restarted_ids) or len(step.plan.dropped_ids):
            return [*step.plan.restarted_ids.tolist(), *step.plan.dropped_ids.tolist()]
    raise AssertionError("nobody was preempted")


def test_the_longest_output_gives_way(core: Core) -> None:
    driver, long_output, short_output = crowd(core)
    assert run_until_preemption(driver) == [long_output]
    assert driver.running == [short_output]
    assert driver.waiting == [long_output]


def test_a_restarted_sequence_keeps_its_output_and_owns_nothing(core: Core) -> None:
    driver, long_output, _ = crowd(core)
    run_until_preemption(driver)
    state = driver.state(long_output)
    assert state["status"] == SequenceStatus.WAITING
    assert state["len"] > state["prompt_len"]
    assert (state["blocks"], state["state_slot"], state["num_computed"]) == ([], -1, 0)
    assert (state["schedule_count"], state["process_count"]) == (0, 0)
    assert driver.scheduler.debug_state()["num_preempted"] == 1


def test_the_last_victim_is_the_first_to_come_back(core: Core) -> None:
    driver = Driver(core, num_blocks=8, block_size=4)
    driver.scheduler.blocks.allocate(1)
    ids = [driver.add(length) for length in (3, 4, 4)]
    driver.step()
    restarted: list[int] = []
    while len(restarted) < 2:
        restarted += driver.decode().plan.restarted_ids.tolist()
    assert driver.waiting == restarted[::-1]
    assert set(restarted) < set(ids)


def test_nobody_is_preempted_while_no_row_needs_a_block(core: Core) -> None:
    driver = Driver(core, num_blocks=3, block_size=16)
    ids = [driver.add(5), driver.add(5)]
    driver.step()
    assert driver.scheduler.blocks.num_free == 0
    for _ in range(10):
        step = driver.step()
        assert sorted(step.ids) == ids
        assert step.plan.stats.num_preempted == 0


def test_policy_reference_preempts_as_soon_as_no_block_is_free(core: Core) -> None:
    driver = Driver(core, small_config(policy="reference"), num_blocks=3, block_size=16)
    driver.add(5)
    driver.add(5)
    driver.step()
    assert len(driver.step().plan.restarted_ids) == 1


def test_stop_preempted_request_ends_the_victim(core: Core) -> None:
    driver, long_output, _ = crowd(core, stop_preempted_request=True)
    assert run_until_preemption(driver) == [long_output]
    assert long_output not in driver.scheduler.debug_state()["sequences"]
    assert driver.waiting == []


def test_the_record_of_an_ended_victim_carries_its_output_length_and_no_token(core: Core) -> None:
    driver, long_output, _ = crowd(core, stop_preempted_request=True)
    num_output = driver.state(long_output)["len"] - 3
    while not (step := driver.decode()).closed:
        num_output += 1
    assert step.closed == [(long_output, SequenceStatus.FINISHED_PREEMPTED, num_output)]


def test_a_structured_victim_ends_because_its_grammar_cannot_be_wound_back(core: Core) -> None:
    driver = Driver(core, num_blocks=7, block_size=4)
    structured = driver.add(3, is_structured=True)
    driver.step()
    for _ in range(4):
        driver.step()
    driver.add(15)
    while not driver.step().is_prefill:
        pass
    assert run_until_preemption(driver) == [structured]
    assert driver.waiting == []


@pytest.mark.parametrize(
    ("policy", "status"),
    [("default", SequenceStatus.FINISHED_PREEMPTED), ("reference", SequenceStatus.FINISHED_IGNORED)],
)
def test_a_sequence_that_outgrows_the_whole_pool_ends(core: Core, policy: str, status: SequenceStatus) -> None:
    """The reason is the pool, not the prompt, and nothing is prefilled again before that is said."""
    driver = Driver(core, small_config(policy=policy), num_blocks=4, block_size=4)
    sequence = driver.add(10)
    steps = driver.run()
    (record,) = [record for step in steps for record in step.closed]
    assert record[:2] == (sequence, status)
    num_prefills = sum(len(step.ids) for step in steps if step.is_prefill)
    assert num_prefills == 1 if policy == "default" else num_prefills > 1
    assert record[2] == (3 if policy == "default" else record[2])


def test_draft_slots_are_reused_last_in_first_out(core: Core) -> None:
    driver = Driver(core, draft_length=1)
    for length in (5, 6, 7):
        driver.add(length)
    assert driver.step().plan.draft_write_slots.tolist() == [1, 2, 3]
    driver.scheduler.abort([0, 1])
    driver.decode()
    assert driver.scheduler.debug_state()["free_draft_slots"][:3] == [2, 1, 4]


def test_the_counters_of_plan_and_result_meet_in_every_step(core: Core) -> None:
    driver = Driver(core)
    sequence = driver.add(100)
    for count in range(1, 5):
        plan = driver.plan()
        assert (driver.state(sequence)["schedule_count"], driver.state(sequence)["process_count"]) == (count, count - 1)
        driver.finish(plan)
        assert driver.state(sequence)["process_count"] == count


def test_the_statistics_describe_the_step_and_what_it_leaves_behind(core: Core) -> None:
    driver = Driver(core)
    driver.add(20)
    driver.add(90)
    driver.step()
    stats = driver.plan_decode().stats
    assert (stats.max_context_length, stats.min_context_length) == (21, 21)
    assert stats.sum_query_times_context == 21
    assert (stats.num_running, stats.num_waiting, stats.num_chunked) == (1, 1, 1)
    assert (stats.num_preempted, stats.num_aborted) == (0, 0)
    assert (stats.num_free_blocks, stats.num_free_state_slots) == (64 - 2 - 6, 8)
    assert (stats.attention_flops, stats.total_flops) == (0.0, 0.0)
