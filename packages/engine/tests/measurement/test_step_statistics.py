import logging
import threading
from collections.abc import Callable, Iterable, Iterator
from dataclasses import replace
from typing import Any

import pytest

from thalweg.engine.statistics import Capacity, StepRecord, StepStatistics, StepTotals
from thalweg.engine.statistics.line import render
from thalweg.interfaces import ConfigError, GrammarCounts, StepKind

MakeRecord = Callable[..., StepRecord]
CAPACITY = Capacity(max_num_seqs=4, num_blocks=11, num_state_slots=6)
LOGGER = "thalweg.engine.statistics"


def clock_of(times: Iterable[float]) -> Callable[[], float]:
    """Gives these times one after the other."""
    iterator: Iterator[float] = iter(times)
    return lambda: next(iterator)


def with_steps(records: Iterable[StepRecord], times: Iterable[float], **options: Any) -> StepStatistics:
    """Statistics without lines that took these records; the last time is for `figures`."""
    statistics = StepStatistics(CAPACITY, interval_steps=0, clock=clock_of(times), **options)
    for record in records:
        statistics.record(record)
    return statistics


def test_steps_are_counted_by_kind(make_record: MakeRecord) -> None:
    statistics = StepStatistics()
    prefill = make_record(0, StepKind.PREFILL, query_lengths=[5, 6], num_tokens=[0, 1], forward_ms=3000, step_ms=4000)
    statistics.record(prefill)
    statistics.record(make_record(1, query_lengths=[1, 1], forward_ms=1500, step_ms=2000, stats={"num_finished": 3}))
    statistics.record(make_record(2, query_lengths=[], step_ms=0))
    assert statistics.totals == StepTotals(1, 1, 1, 11, 3, 4.5, 6.0, 3)
    assert statistics.totals.share_outside_forward == 0.25
    assert StepTotals().share_outside_forward == 0.0


def test_a_copy_of_the_totals_is_a_point_to_measure_from(make_record: MakeRecord) -> None:
    statistics = StepStatistics()
    before = statistics.totals.copy()
    statistics.record(make_record(0))
    assert before == StepTotals()
    assert statistics.totals.minus(before).num_decode_steps == 1


def test_there_are_no_figures_before_the_first_step() -> None:
    assert StepStatistics().figures() is None


def test_the_first_step_opens_the_window_and_rates_extend_to_now(make_record: MakeRecord) -> None:
    prefill = make_record(0, StepKind.PREFILL, query_lengths=[90], step_ms=500)
    steps = [prefill, *(make_record(step, query_lengths=[1, 1], step_ms=250) for step in (1, 2))]
    figures = with_steps(steps, [10.0, 11.0, 12.0, 14.0]).figures()
    assert figures is not None
    assert figures.speed.average_steps == 2 / 4.0
    assert figures.speed.output_tokens == 4 / 4.0
    assert figures.speed.prompt_tokens == 0
    assert figures.speed.current_steps == 4.0
    assert figures.speed.current_tokens == 8.0
    assert figures.prefill_share == 0.0


def test_one_step_alone_has_no_averages(make_record: MakeRecord) -> None:
    figures = with_steps([make_record(0)], [1.0, 1.0]).figures()
    assert figures is not None
    assert figures.speed.average_steps is None
    assert figures.speed.output_tokens is None
    assert figures.prefill_share is None
    assert figures.timings == ()


def test_the_window_forgets_old_steps(make_record: MakeRecord) -> None:
    statistics = StepStatistics(interval_steps=2, clock=clock_of(float(second) for second in range(100)))
    for step in range(1, 10, 2):  # odd, so that no line asks the clock
        statistics.record(make_record(step, query_lengths=[1] * step))
    figures = statistics.figures()  # steps 7 and 9 at 3 and 4 s; 5 opened the window at 2 s; now it is 5 s
    assert figures is not None
    assert figures.speed.average_steps == pytest.approx(2 / 3)
    assert figures.speed.output_tokens == pytest.approx((7 + 9) / 3)


def test_acceptance_is_counted_over_drafts_and_by_position(make_record: MakeRecord) -> None:
    steps = [
        make_record(0),
        make_record(1, query_lengths=[4, 4, 2], accepted=[4, 2, 1]),
        make_record(2, query_lengths=[4, 1], accepted=[1, 1]),
        make_record(3, query_lengths=[4], num_tokens=[0], accepted=[0]),  # its request had ended
        make_record(4, StepKind.PREFILL, query_lengths=[50]),
    ]
    figures = with_steps(steps, [0.0] * 6).figures()
    assert figures is not None
    speculation = figures.speculation
    assert (speculation.num_verified, speculation.num_accepted) == (3 + 3 + 1 + 3, 3 + 1)
    assert speculation.acceptance == 0.4
    assert speculation.accepted_by_position == (2 / 4, 1 / 3, 1 / 3)
    assert speculation.mean_verify_length == 15 / 5
    assert speculation.mean_accepted_length == 9 / 5


def test_without_drafts_there_is_no_acceptance(make_record: MakeRecord) -> None:
    figures = with_steps([make_record(0), make_record(1)], [0.0] * 3).figures()
    assert figures is not None
    assert figures.speculation.acceptance is None
    assert figures.speculation.accepted_by_position == ()
    assert "acceptance" not in render(figures)


def test_usage_leaves_the_null_ids_out(make_record: MakeRecord) -> None:
    stats = {"num_running": 3, "num_free_blocks": 8, "num_free_state_slots": 5, "num_waiting": 2, "num_prompted": 4}
    figures = with_steps([make_record(0, stats=stats)], [0.0] * 2).figures()
    assert figures is not None
    assert figures.load.batch_fill == 0.75
    assert figures.load.kv_usage == pytest.approx(0.2)
    assert figures.load.state_usage == 0.0
    assert figures.load.num_pending == 6


def test_mean_lengths_are_of_the_queues_and_of_what_finished_in_the_window(make_record: MakeRecord) -> None:
    stats = {"num_running": 2, "prompt_tokens_running": 30, "num_waiting": 4, "prompt_tokens_waiting": 100}
    finished = {"num_finished": 2, "finished_output_tokens": 20, "finished_prompt_tokens": 50}
    steps = [make_record(0, stats=finished), make_record(1, stats=finished | stats)]
    figures = with_steps(steps, [0.0] * 3).figures()
    assert figures is not None
    load, endings = figures.load, figures.endings
    assert (load.mean_prompt_running, load.mean_prompt_waiting, load.mean_prompt_chunked) == (15, 25, None)
    assert (endings.num_finished, endings.mean_output, endings.mean_prompt) == (4, 10, 25)


def test_first_tokens_loads_and_errors_appear_once_they_are_measured(make_record: MakeRecord) -> None:
    measured = {"first_token_ms": (10.0, 50.0), "moe_load": (4.0, 6.0)}
    steps = [make_record(0), make_record(1), make_record(2, **measured)]
    figures = with_steps(steps, [0.0] * 4).figures()
    assert figures is not None
    assert (figures.max_first_token_ms, figures.mean_first_token_ms) == (50.0, 30.0)
    assert figures.imbalance == 1.5
    bare = with_steps([make_record(0), make_record(1)], [0.0] * 3).figures()
    assert bare is not None
    assert (bare.max_first_token_ms, bare.mean_first_token_ms, bare.imbalance) == (None, None, None)
    assert bare.speculation.confidence_error is None


def test_the_confidence_error_is_a_mean_over_verified_drafts_of_known_confidence(make_record: MakeRecord) -> None:
    nan = float("nan")
    drafts = {"query_lengths": [3, 3, 2], "accepted": [2, 1, 1]}
    steps = [
        make_record(0),
        make_record(
            1,
            **drafts,
            confidences=[[0.5, 0.25], [nan, nan], [1.0, 1.0]],
            accept_probs=[[1.0, 0.5], [0.5, 0.5], [0.25, nan]],
        ),
        make_record(2, query_lengths=[2], confidences=[[0.0]], accept_probs=[[0.0]]),
        make_record(3, StepKind.PREFILL, query_lengths=[5], confidences=[[nan]], accept_probs=[[]]),
    ]
    figures = with_steps(steps, [0.0] * 5).figures()
    assert figures is not None
    assert figures.speculation.confidence_error == (0.5 + 0.25 + 0.75 + 0.0) / 4


def test_faults_of_the_drafter_are_counted_and_logged_at_powers_of_ten(
    make_record: MakeRecord, caplog: pytest.LogCaptureFixture
) -> None:
    statistics = StepStatistics(interval_steps=0)
    for step in range(120):
        statistics.record(make_record(step, draft_faults=(1, 0) if step else (0, 1)))
    assert (statistics.totals.num_illegal_drafts, statistics.totals.num_bad_confidences) == (119, 1)
    messages = [record.getMessage() for record in caplog.records]
    assert [message.partition(" ids")[0] for message in messages] == [
        f"so far the drafter proposed {count}" for count in (0, 9, 99)
    ]
    assert "1 confidences outside 0..1" in messages[0]


def test_utilisation_needs_a_peak_and_an_estimate(make_record: MakeRecord) -> None:
    steps = [make_record(step, stats={"total_flops": 1e12}) for step in range(3)]
    times = [1.0, 2.0, 3.0, 9.0]
    peak = replace(CAPACITY, peak_tflops=2.0, num_devices=2)

    def mfu(capacity: Capacity, records: list[StepRecord]) -> float | None:
        statistics = StepStatistics(capacity, interval_steps=0, clock=clock_of(times))
        for record in records:
            statistics.record(record)
        figures = statistics.figures()
        assert figures is not None
        return figures.mfu

    assert mfu(peak, steps) == 2 / (2 * 2 * 2)  # from the first to the last step, not to now
    assert mfu(CAPACITY, steps) is None
    assert mfu(peak, [make_record(step) for step in range(3)]) is None


def test_timings_and_shares_are_of_the_window(make_record: MakeRecord) -> None:
    steps = [
        make_record(0, step_ms=99.0),
        make_record(1, StepKind.PREFILL, query_lengths=[5], step_ms=30.0, forward_ms=20.0),
        make_record(2, step_ms=10.0, forward_ms=4.0, sampler_ms=1.0),
    ]
    figures = with_steps(steps, [0.0] * 4).figures()
    assert figures is not None
    assert figures.prefill_share == 0.75
    step, forward, sampler = figures.timings
    assert (step.name, step.current_ms, step.mean_ms, step.max_ms, step.num_calls) == ("step", 10.0, 20.0, 30.0, 2)
    assert (forward.current_ms, forward.mean_ms, forward.max_ms, forward.share) == (4.0, 12.0, 20.0, 0.6)
    assert (sampler.mean_ms, sampler.share) == (0.5, 1 / 40)


def test_masks_are_timed_once_there_are_some(make_record: MakeRecord) -> None:
    steps = [make_record(step, step_ms=10.0, mask_ms=mask_ms) for step, mask_ms in enumerate((1.0, 0.0, 3.0))]
    statistics = with_steps(steps, [0.0] * 4)
    figures = statistics.figures()
    assert figures is not None
    (masks,) = figures.timings[3:]
    assert (masks.name, masks.current_ms, masks.mean_ms, masks.max_ms, masks.share) == ("masks", 3.0, 1.5, 3.0, 0.15)
    assert statistics.totals.mask_s == 0.004
    figures = with_steps(steps[:2], [0.0] * 3).figures()
    assert figures is not None
    assert [timing.name for timing in figures.timings] == ["step", "forward", "sampler"]


def test_the_line_says_what_became_of_grammars_once_there_are_some(make_record: MakeRecord) -> None:
    statistics = with_steps([make_record(0), make_record(1)], [0.0] * 5)

    def line(counts: GrammarCounts) -> str:
        statistics.watch_grammars(lambda: counts)
        figures = statistics.figures()
        assert figures is not None
        assert figures.grammars == statistics.grammars == counts
        return render(figures)

    assert "grammars" not in line(GrammarCounts())
    counts = GrammarCounts(num_submitted=9, num_compiled=4, num_cache_hits=2, num_failed=1)
    assert line(counts).endswith("; grammars 4 compiled, 2 from the cache, 1 failed")
    assert line(replace(counts, num_failed=3, num_timeouts=2)).endswith("3 failed (2 timed out)")


def test_the_line_shows_every_figure(make_record: MakeRecord) -> None:
    stats = {
        "num_running": 3,
        "num_waiting": 2,
        "num_chunked": 1,
        "num_preempted": 4,
        "num_aborted": 5,
        "num_free_blocks": 5,
        "num_free_state_slots": 2,
        "prompt_tokens_running": 30,
        "prompt_tokens_waiting": 50,
        "prompt_tokens_chunked": 20,
        "num_finished": 1,
        "finished_output_tokens": 7,
        "finished_prompt_tokens": 9,
        "total_flops": 5e11,
    }
    measured = {
        "first_token_ms": (120.0,),
        "moe_load": (2.0, 3.0),
        "confidences": [[0.5, 0.875]],
        "accept_probs": [[0.5, 0.625]],
    }
    steps = [
        make_record(4),
        make_record(5, query_lengths=[3], accepted=[2], step_ms=20.0, forward_ms=15.0, stats=stats, **measured),
    ]
    statistics = StepStatistics(replace(CAPACITY, peak_tflops=1.0), interval_steps=0, clock=clock_of([1.0, 2.0, 2.0]))
    for record in steps:
        statistics.record(record)
    figures = statistics.figures()
    assert figures is not None
    assert render(figures) == (
        "step 5 (decode): 50.0 steps/s now, 1.0 on average, 100.0 tokens/s now, 0.0 prompt tokens/s, 2.0 "
        "output tokens/s; acceptance 50.0% (1 of 2 drafts; by position 100.0% 0.0%), verify length 3.00, "
        "accepted length 2.00, confidence error 0.125; 3 running, 2 pending, 1 chunked; batch 75.0%, KV "
        "50.0%, states 60.0%; mean prompt 10 running, 25 waiting, 20 chunked; time 0.0% prefill, 100.0% "
        "decode; first token 120.0 ms at most, 120.0 ms on average; 1 finished (mean prompt 9, output 7), 4 "
        "preempted, 5 aborted; imbalance 1.50; MFU 50.0%; step 20.00/20.00/20.00 ms now/mean/max, 1 calls; "
        "forward 15.00/15.00/15.00 ms now/mean/max, 1 calls, 75.0%; sampler 0.00/0.00/0.00 ms now/mean/max, "
        "1 calls, 0.0%"
    )


def test_a_line_is_logged_at_step_0_and_every_interval_by_another_thread(
    make_record: MakeRecord, caplog: pytest.LogCaptureFixture
) -> None:
    statistics = StepStatistics(CAPACITY, interval_steps=3, rank=1)
    with caplog.at_level(logging.INFO, LOGGER):
        for step in range(8):
            statistics.record(make_record(step))
        statistics.close()
    lines = [record for record in caplog.records if record.name == LOGGER]
    assert [line.getMessage().split(":")[0] for line in lines] == [f"step {step} (decode)" for step in (0, 3, 6)]
    assert {line.thread for line in lines}.isdisjoint({threading.get_ident()})


@pytest.mark.parametrize(("rank", "delay_s"), [(0, 0.0), (3, 0.015), (8, 0.0), (15, 0.035)])
def test_ranks_write_their_lines_one_after_the_other(
    make_record: MakeRecord, monkeypatch: pytest.MonkeyPatch, rank: int, delay_s: float
) -> None:
    slept: list[float] = []
    monkeypatch.setattr("thalweg.engine.statistics.reporter.time.sleep", slept.append)
    statistics = StepStatistics(CAPACITY, interval_steps=1, rank=rank)
    statistics.record(make_record(0))
    statistics.close()
    assert slept == [pytest.approx(delay_s)]


def test_a_window_has_a_limit_however_rare_the_lines_are(make_record: MakeRecord) -> None:
    statistics = StepStatistics(CAPACITY, interval_steps=1 << 30)
    record = make_record(1)
    for _ in range(10_010):
        statistics.record(record)
    figures = statistics.figures()
    assert figures is not None
    assert figures.timings[0].num_calls == 10_000


@pytest.mark.parametrize("interval", [0, -1])
def test_without_an_interval_nothing_is_logged_and_no_thread_starts(
    make_record: MakeRecord, caplog: pytest.LogCaptureFixture, interval: int
) -> None:
    before = set(threading.enumerate())
    statistics = StepStatistics(CAPACITY, interval_steps=interval)
    with caplog.at_level(logging.INFO, LOGGER):
        for step in range(3):
            statistics.record(make_record(step))
        assert set(threading.enumerate()) <= before
        statistics.close()
    assert caplog.records == []
    assert statistics.totals.num_decode_steps == 3


def test_a_callback_that_raises_is_logged_once_and_stops_nothing(
    make_record: MakeRecord, caplog: pytest.LogCaptureFixture
) -> None:
    statistics = StepStatistics(CAPACITY, interval_steps=0)
    seen: list[int] = []

    def broken(record: StepRecord) -> None:
        raise RuntimeError(f"step {record.plan.step}")

    statistics.on_step(broken)
    statistics.on_step(lambda record: seen.append(record.plan.step))
    for step in range(3):
        statistics.record(make_record(step))
    assert seen == [0, 1, 2]
    assert statistics.totals.num_decode_steps == 3
    failures = [record for record in caplog.records if record.exc_info]
    assert len(failures) == 1
    assert "broken" in failures[0].getMessage()
    assert "steps go on" in failures[0].getMessage()


@pytest.mark.parametrize("register", ["on_step", "on_finish"])
def test_what_cannot_be_called_is_refused_at_once(register: str) -> None:
    with pytest.raises(ConfigError, match="callback is None"):
        getattr(StepStatistics(CAPACITY), register)(None)


def test_a_record_that_makes_no_sense_stops_nothing(make_record: MakeRecord, caplog: pytest.LogCaptureFixture) -> None:
    statistics = StepStatistics(Capacity(max_num_seqs=0, num_blocks=1, num_state_slots=1), interval_steps=1)
    for step in range(3):
        statistics.record(make_record(step))
    statistics.close()
    assert len([record for record in caplog.records if record.exc_info]) == 1


def test_finished_outputs_reach_the_callbacks_and_others_do_not(caplog: pytest.LogCaptureFixture) -> None:
    statistics = StepStatistics(CAPACITY)
    batches: list[Any] = []

    class Output:
        def __init__(self, finished: bool) -> None:
            self.finished = finished

    def broken(outputs: Any) -> None:
        raise RuntimeError("no")

    statistics.on_finish(broken)
    statistics.on_finish(batches.append)
    done, open_one = Output(True), Output(False)
    statistics.record_finished([open_one, done])  # type: ignore[list-item]
    statistics.record_finished([open_one])  # type: ignore[list-item]
    assert batches == [[done]]
    assert len(caplog.records) == 1
