"""What the loop does while a step is in flight, and what happens to the requests of such a step."""

from dataclasses import replace
from typing import Any

import numpy as np
import pytest
import torch
from engine_testing.bench import LETTERS, Bench, params
from engine_testing.cores import CORES
from engine_testing.recorder import Recorder

from thalweg.engine.runner import check_context_lengths
from thalweg.engine.sampling_row import SamplingRow, SequenceToSample
from thalweg.engine.timeline import Timeline
from thalweg.engine.tokenizer import Tokenizer
from thalweg.interfaces import InvariantError, RequestOutput, StepCorrection, StepPlan


@pytest.fixture(params=CORES)
def core(request: pytest.FixtureRequest) -> Any:
    return request.param


@pytest.fixture
def bench(tokenizer: Tokenizer, core: Any) -> Bench:
    return Bench(tokenizer, core=core, async_scheduling=True)


def steps(bench: Bench, count: int) -> None:
    for _ in range(count):
        bench.step()
    assert bench.engine.failure is None, bench.engine.failure


def test_a_step_is_planned_launched_and_the_one_before_processed_in_the_order_of_the_table(bench: Bench) -> None:
    recorder = Recorder(bench)
    bench.engine.add_request("r", "z", params(max_tokens=30))
    steps(bench, 1)
    assert recorder.take() == [
        "plan 0",
        "launch 0",
        "sample 0",
        "release 0",
        "collect 0",
        "wait for results of 0",
        "process 0",
    ]
    steps(bench, 1)
    assert recorder.take() == ["plan 1", "launch 1", "correct 1", "sample 1", "release 1"]
    for number in range(2, 6):
        steps(bench, 1)
        assert recorder.take() == [
            f"plan {number}",
            f"launch {number}",
            f"collect {number - 1}",
            f"wait for results of {number - 1}",
            f"process {number - 1}",
            f"correct {number}",
            f"sample {number}",
            f"release {number}",
        ]


def test_a_synchronous_step_is_the_same_calls_finished_in_place(tokenizer: Tokenizer, core: Any) -> None:
    bench = Bench(tokenizer, core=core)
    recorder = Recorder(bench)
    bench.engine.add_request("r", "z", params(max_tokens=30))
    steps(bench, 1)
    recorder.take()
    steps(bench, 1)
    assert recorder.take() == [
        "plan 1",
        "launch 1",
        "sample 1",
        "release 1",
        "collect 1",
        "wait for results of 1",
        "process 1",
    ]


def test_the_host_works_while_the_device_computes(bench: Bench) -> None:
    """The device will not end a forward pass before the host has done all it can do beside it."""
    recorder = Recorder(bench)

    def wait_for_host(number: int) -> None:
        if 2 <= number <= 6:
            recorder.wait_for(f"process {number - 1}")
            recorder.wait_for(f"sample {number}")
            recorder.wait_for(f"plan {number + 1}")
            recorder.wait_for(f"launch {number + 1}")

    bench.model.on_forward = wait_for_host
    bench.engine.add_request("r", "z", params(max_tokens=12))
    assert bench.drain()["r"].outputs[0].text == LETTERS[:12]


def test_a_prefill_between_decodes_finishes_what_is_in_flight_and_itself(tokenizer: Tokenizer, core: Any) -> None:
    bench = Bench(tokenizer, core=core, async_scheduling=True, prefill_interval_all=1)
    recorder = Recorder(bench)
    bench.engine.add_request("one", "z", params(max_tokens=20))
    steps(bench, 3)
    bench.engine.add_request("two", "z", params(max_tokens=20))
    recorder.take()
    outputs = bench.step()
    assert [output.request_id for output in outputs] == ["one", "two"]
    events = recorder.take()
    assert events[:2] == ["plan 3", "launch 3"]
    assert events.index("process 2") < events.index("sample 3") < events.index("process 3")
    assert "correct 3" not in events
    steps(bench, 1)
    assert (recorder.plans[4].previous_rows == -1).all()
    finals = bench.drain()
    assert finals["one"].outputs[0].text == finals["two"].outputs[0].text == LETTERS[:20]


def test_a_request_that_ends_is_in_one_more_step_whose_token_goes_nowhere(bench: Bench) -> None:
    recorder = Recorder(bench)
    bench.engine.add_request("string", "z", params(stop="d", max_tokens=20))
    bench.engine.add_request("length", "z", params(max_tokens=3))
    bench.engine.add_request("other", "z", params(max_tokens=10))
    finals = bench.drain()
    assert finals["string"].outputs[0].token_ids == tuple(bench.letters[:4])
    assert finals["length"].outputs[0].token_ids == tuple(bench.letters[:3])
    assert finals["other"].outputs[0].text == LETTERS[:10]
    rows = {number: set(plan.sequence_ids.tolist()) for number, plan in recorder.plans.items()}
    assert 1 in rows[3], "length has its three tokens after step 2, and step 3 was launched before that was known"
    assert 1 not in rows[4]
    assert recorder.plans[4].finished_ids.tolist() == [1]


def test_an_abort_reaches_a_request_in_flight(bench: Bench) -> None:
    for name in ("aborted", "other"):
        bench.engine.add_request(name, "z", params(max_tokens=12))
    steps(bench, 4)
    assert bench.engine.abort_request("aborted") == 1
    finals = bench.drain()
    assert (finals["aborted"].outputs[0].text, finals["aborted"].outputs[0].finish_reason) == ("abc", "abort")
    assert finals["other"].outputs[0].text == LETTERS[:12]


def test_a_callback_may_abort_a_request_whose_prefill_is_being_launched(tokenizer: Tokenizer, core: Any) -> None:
    bench = Bench(tokenizer, core=core, async_scheduling=True, prefill_interval_all=1)
    bench.engine.add_request("decodes", "z", params(max_tokens=12))
    steps(bench, 3)
    bench.engine.add_request("prefilled", "z", params(max_tokens=12))
    aborted: list[int] = []
    bench.engine.statistics.on_step(lambda record: aborted.append(bench.engine.abort_request("prefilled")))
    steps(bench, 1)
    assert aborted == [1, 0], "the step in flight was processed between launch and sampling of the prefill"
    finals = bench.drain()
    assert (finals["prefilled"].outputs[0].text, finals["prefilled"].outputs[0].finish_reason) == ("", "abort")
    assert finals["decodes"].outputs[0].text == LETTERS[:12]


@pytest.mark.parametrize("call", ["step", "flush"])
def test_a_callback_that_steps_the_engine_is_refused_and_harms_nothing(
    bench: Bench, call: str, caplog: pytest.LogCaptureFixture
) -> None:
    bench.engine.add_request("r", "z", params(max_tokens=12))
    bench.engine.statistics.on_step(lambda record: getattr(bench.engine, call)())
    finals = bench.drain()
    assert finals["r"].outputs[0].text == LETTERS[:12]
    (refusal,) = (record for record in caplog.records if record.exc_info)
    assert "a step runs already" in str(refusal.exc_info)


def test_memory_is_held_until_the_plan_that_lists_a_sequence_is_launched_and_released(bench: Bench) -> None:
    recorder = Recorder(bench)
    bench.engine.add_request("r", "z", params(max_tokens=4))
    free = bench.scheduler.blocks.num_free
    steps_that_free = []
    while bench.engine.has_unfinished():
        free_before = bench.scheduler.blocks.num_free
        bench.step()
        events = recorder.take()
        if bench.scheduler.blocks.num_free > free_before:
            steps_that_free.append(events)
    assert bench.scheduler.blocks.num_free == free
    (freeing,) = steps_that_free
    (listing,) = (number for number, plan in recorder.plans.items() if plan.finished_ids.size)
    assert freeing.index(f"launch {listing}") < freeing.index(f"release {listing}")
    assert not recorder.plans[listing].sequence_ids.size


def test_a_sequence_preempted_in_flight_says_the_same(tokenizer: Tokenizer, core: Any) -> None:
    bench = Bench(tokenizer, core=core, async_scheduling=True, num_blocks=8)
    recorder = Recorder(bench)
    for index in range(4):
        bench.engine.add_request(str(index), "z" * (index + 1), params(max_tokens=30))
    finals = bench.drain()
    assert all(final.outputs[0].text == (LETTERS * 2)[:30] for final in finals.values())
    in_flight = [
        sequence
        for number, plan in recorder.plans.items()
        for sequence in plan.restarted_ids.tolist()
        if number - 1 in recorder.plans and sequence in recorder.plans[number - 1].sequence_ids
    ]
    assert in_flight
    assert sum(final.metrics.num_preemptions for final in finals.values()) >= len(in_flight)


def test_flush_finishes_the_step_in_flight_and_stepping_goes_on(bench: Bench) -> None:
    assert bench.flush() == []
    bench.engine.add_request("r", "z", params(max_tokens=8))
    steps(bench, 3)
    (output,) = bench.flush()
    assert output.outputs[0].text == "abc"
    assert bench.flush() == []
    steps(bench, 2)
    (output,) = bench.flush()
    assert output.outputs[0].text == "abcde"
    assert bench.drain()["r"].outputs[0].text == LETTERS[:8]


def test_closing_with_a_step_in_flight_ends_the_device_thread(bench: Bench) -> None:
    bench.engine.add_request("r", "z", params(max_tokens=8))
    steps(bench, 3)
    bench.engine.close()
    assert not bench.engine.has_unfinished()
    assert bench.engine.flush() == []


@pytest.mark.parametrize("work", ["prepare", "sample"])
def test_whatever_work_of_the_device_fails_every_request_ends_with_the_reason(
    bench: Bench, work: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    for name in ("one", "two"):
        bench.engine.add_request(name, "z", params(max_tokens=8))
    steps(bench, 3)

    def fail(*_: object, **__: object) -> None:
        raise RuntimeError("device lost")

    monkeypatch.setattr(bench.runner.device, work, fail)
    while bench.engine.has_unfinished():
        bench.step()
    assert bench.finals.keys() == {"one", "two"}
    assert {final.outputs[0].text for final in bench.finals.values()} <= {"ab", "abc"}
    assert all("device lost" in str(final.error) for final in bench.finals.values())
    bench.engine.close()


def test_outputs_of_a_step_survive_a_failure_of_the_next(bench: Bench, monkeypatch: pytest.MonkeyPatch) -> None:
    """The step before is processed, then the launch of sampling fails: what it ended has ended well."""
    bench.engine.add_request("done", "z", params(max_tokens=3))
    bench.engine.add_request("hit", "z", params(max_tokens=8))
    steps(bench, 3)

    def fail(*_: object) -> None:
        raise RuntimeError("no more memory")

    monkeypatch.setattr(bench.runner, "sample", fail)
    bench.step()
    assert bench.finals["done"].error is None
    assert bench.finals["done"].outputs[0].text == "abc"
    assert bench.finals["hit"].error == "the engine failed: RuntimeError: no more memory"


def test_reading_from_the_device_while_launching_is_an_error_unless_the_guard_is_off(
    tokenizer: Tokenizer, core: Any
) -> None:
    def serve(*, is_guarded: bool) -> RequestOutput:
        bench = Bench(tokenizer, core=core, async_scheduling=True)
        bench.backend.guard.enabled = is_guarded
        bench.model.on_forward = lambda number: bench.backend.read(bench.model.batches[number].token_ids)
        bench.engine.add_request("r", "z", params(max_tokens=3))
        while bench.engine.has_unfinished():
            bench.step()
        return bench.finals["r"]

    assert "HostSyncError" in str(serve(is_guarded=True).error)
    assert serve(is_guarded=False).outputs[0].text == "abc"


def test_a_position_that_device_and_scheduler_disagree_about_is_found(bench: Bench) -> None:
    recorder = Recorder(bench)
    bench.engine.add_request("r", "z", params(max_tokens=8))
    steps(bench, 3)
    plan: StepPlan = recorder.plans[2]
    ones = np.ones(1, np.int32)
    correction = StepCorrection(
        ones, ones * 9, ones * 9, ones, np.zeros((1, 0), np.int32), ones, ones, np.array([True])
    )
    check_context_lengths(plan, correction, ones * 9)
    with pytest.raises(InvariantError, match=r"step 2, sequence 0: .* context length is 8, the scheduler.s 9"):
        check_context_lengths(plan, correction, ones * 8)
    correction.is_live[0] = False
    check_context_lengths(plan, correction, ones * 8)


def test_lengths_are_compared_in_every_asynchronous_step(bench: Bench, monkeypatch: pytest.MonkeyPatch) -> None:
    bench.engine.add_request("r", "z", params(max_tokens=8))
    steps(bench, 2)
    correct = bench.scheduler.correct

    def shifted(step: int, query_lengths: Any) -> StepCorrection:
        correction: StepCorrection = correct(step, query_lengths)
        correction.context_lengths[:] += 1
        return correction

    monkeypatch.setattr(bench.scheduler, "correct", shifted)
    while bench.engine.has_unfinished():
        bench.step()
    assert "the device's context length is" in str(bench.finals["r"].error)


def test_cache_copies_come_before_everything_else_of_their_step(tokenizer: Tokenizer, core: Any) -> None:
    timeline = Timeline()
    bench = Bench(tokenizer, core=core, async_scheduling=True, timeline=timeline)
    recorder = Recorder(bench)
    device: Any = bench.runner.device
    device.pools.states[:] = torch.arange(6)[:, None]
    device.pools.blocks[:] = torch.arange(41)[:, None]
    bench.engine.add_request("r", "z", params(max_tokens=2))
    steps(bench, 1)
    pairs = np.array([[1, 3]], np.int32)
    plan = replace(
        recorder.plans[0], state_copies=pairs, block_copies=pairs * 2, zero_state_slots=np.array([1], np.int32)
    )
    step = bench.runner.launch(plan, None)
    bench.runner.sample(step, None, [SequenceToSample(SamplingRow.neutral())])
    bench.runner.collect(step)
    assert device.pools.states[:4, 0].tolist() == [0, 0, 2, 1]
    assert device.pools.blocks[6, 0] == 2
    names = [span.name for span in timeline.spans if span.track == "device"]
    assert names[-4:] == ["copy", "prepare", "forward", "sample"]
