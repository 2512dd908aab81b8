"""Asynchronous stepping hides post-processing behind the device: measured with parts that take a scripted time."""

import itertools
import statistics
import time
from typing import Any

import pytest
from engine_testing.bench import Bench, params
from engine_testing.recorder import Proxy

from thalweg.engine.timeline import Span, Timeline
from thalweg.engine.tokenizer import Tokenizer
from thalweg.interfaces import StepOutcome, StepResult
from thalweg.scheduler import Scheduler

FORWARD_S, PROCESS_S = 0.020, 0.015
NUM_STEPS = 30
ATTEMPTS = 12
"""Other work on the machine delays threads that wake up, so one good run of a few is enough."""


def slow_core(*args: Any, **options: Any) -> Any:
    """A scheduler that takes its time to process results."""
    scheduler = Scheduler(*args, **options)

    def process(result: StepResult) -> StepOutcome:
        time.sleep(PROCESS_S)
        return scheduler.process(result)

    return Proxy(scheduler, process=process)


def decode(tokenizer: Tokenizer, *, is_async: bool) -> tuple[float, Timeline]:
    """Median seconds per decode step, and what happened in them."""
    timeline = Timeline()
    bench = Bench(tokenizer, core=slow_core, async_scheduling=is_async, timeline=timeline)
    bench.model.on_forward = lambda number: time.sleep(FORWARD_S)
    bench.engine.add_request("r", "a", params(max_tokens=NUM_STEPS + 10))
    for _ in range(3):
        bench.step()
    ends = [time.perf_counter()]
    for _ in range(NUM_STEPS):
        bench.step()
        ends.append(time.perf_counter())
    bench.engine.flush()  # the times of the device are known when a step is processed
    assert bench.engine.failure is None
    bench.engine.close()
    return statistics.median(later - earlier for earlier, later in itertools.pairwise(ends)), timeline


def by_step(timeline: Timeline, track: str, name: str) -> dict[int, Span]:
    found = [span for span in timeline.spans if (span.track, span.name) == (track, name)]
    return {span.arguments["step"]: span for span in found}


def overlaps_s(timeline: Timeline) -> list[float]:
    """Per decode step: how long the device computed while the host processed the step before."""
    forwards, processes = by_step(timeline, "device", "forward"), by_step(timeline, "host", "process")
    return [
        max(0, min(forwards[step].end_ns, processes[step - 1].end_ns) - processes[step - 1].start_ns) / 1e9
        if forwards[step].start_ns < processes[step - 1].end_ns
        else 0.0
        for step in range(3, 3 + NUM_STEPS)
    ]


def hidden_share(tokenizer: Tokenizer) -> float:
    """Part of the post-processing that costs no time, by medians over the steps of one run."""
    seconds, timeline = decode(tokenizer, is_async=True)
    forward, process = (
        statistics.median((span.end_ns - span.start_ns) / 1e9 for span in by_step(timeline, *what).values())
        for what in (("device", "forward"), ("host", "process"))
    )
    return (forward + process - seconds) / process


def test_a_step_takes_as_long_as_the_device_and_not_as_both(tokenizer: Tokenizer) -> None:
    # 0.97 on an idle machine (a step takes 1.02 of the device's time, says the benchmark). Without overlap it is 0 or
    # less.
    shares = (hidden_share(tokenizer) for _ in range(ATTEMPTS))
    assert any(share > 0.5 for share in shares)


def test_synchronous_stepping_takes_as_long_as_both(tokenizer: Tokenizer) -> None:
    seconds, timeline = decode(tokenizer, is_async=False)
    assert seconds >= FORWARD_S + PROCESS_S
    assert not any(overlaps_s(timeline))


def test_a_step_is_processed_while_the_device_computes_the_next_one(tokenizer: Tokenizer) -> None:
    timelines = (decode(tokenizer, is_async=True)[1] for _ in range(ATTEMPTS))
    assert any(statistics.median(overlaps_s(timeline)) > 0.5 * PROCESS_S for timeline in timelines)


def test_every_wait_of_the_host_is_for_the_step_before(tokenizer: Tokenizer) -> None:
    """Launch N, wait for N-1, process N-1, sample N: in this order in every step, with nothing else in between."""
    _, timeline = decode(tokenizer, is_async=True)
    host = sorted((span for span in timeline.spans if span.track == "host"), key=lambda span: span.start_ns)
    names = [(span.name, span.arguments.get("step")) for span in host]
    first = names.index(("launch", 5))
    for step in range(5, 5 + 20):
        expected = [("launch", step), ("wait", step - 1), ("process", step - 1), ("outputs", step - 1)]
        expected += [("sample", step), ("plan", None)]
        assert names[first : first + len(expected)] == expected
        first += len(expected)


@pytest.mark.parametrize("is_async", [False, True])
def test_the_scripted_times_change_no_text(tokenizer: Tokenizer, is_async: bool) -> None:
    bench = Bench(tokenizer, async_scheduling=is_async)
    bench.model.on_forward = lambda number: time.sleep(0.002)
    bench.engine.add_request("r", "a", params(max_tokens=5))
    bench.drain()
    assert bench.text("r") == "bcdef"
