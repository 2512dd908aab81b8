"""The record of who did what when, and the trace file made of it."""

import json
import threading
import time
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from thalweg.engine.timeline import NullTimeline, Timeline
from thalweg.interfaces import ConfigError


def complete_events(timeline: Timeline) -> list[dict[str, Any]]:
    return [event for event in timeline.to_json()["traceEvents"] if event["ph"] == "X"]


def row_labels(timeline: Timeline) -> dict[int, str]:
    events = timeline.to_json()["traceEvents"]
    return {event["tid"]: event["args"]["name"] for event in events if event["name"] == "thread_name"}


def test_a_span_lasts_as_long_as_its_block() -> None:
    timeline = Timeline()
    before = time.perf_counter_ns()
    with timeline.span("host", "plan", step=3):
        time.sleep(0.01)
    (span,) = timeline.spans
    assert (span.track, span.name, span.arguments) == ("host", "plan", {"step": 3})
    assert before <= span.start_ns <= span.end_ns - 10_000_000
    assert span.end_ns <= time.perf_counter_ns()


def test_a_block_that_raises_is_recorded_and_its_error_passes_on() -> None:
    timeline = Timeline()
    with pytest.raises(ZeroDivisionError), timeline.span("host", "plan"):
        1 / 0  # noqa: B018
    assert [span.name for span in timeline.spans] == ["plan"]


def test_an_argument_may_be_called_as_our_own_parameters_are() -> None:
    timeline = Timeline()
    with timeline.span("host", "plan", name="a", track="b", start_ns=1):
        pass
    assert timeline.spans[0].arguments == {"name": "a", "track": "b", "start_ns": 1}


def test_a_trace_has_what_its_viewers_need(tmp_path: Path) -> None:
    timeline = Timeline(rank=2)
    timeline.record("host", "plan", 1_000, 4_500, step=1)
    timeline.record("device", "forward", 2_000, 9_000)
    timeline.write(tmp_path / "trace.json")
    trace = json.loads((tmp_path / "trace.json").read_text())
    by_phase: dict[str, list[dict[str, Any]]] = {}
    for event in trace["traceEvents"]:
        assert {"name", "ph", "pid", "tid", "ts"} <= event.keys()
        by_phase.setdefault(event["ph"], []).append(event)
    assert by_phase.keys() == {"M", "X"}
    assert {event["pid"] for event in trace["traceEvents"]} == {2}
    names = {(event["name"], event["args"].get("name")) for event in by_phase["M"]}
    assert {("process_name", "thalweg rank 2"), ("thread_name", "host"), ("thread_name", "device")} <= names
    plan, forward = by_phase["X"]
    assert (plan["name"], plan["cat"], plan["ts"], plan["dur"], plan["args"]) == ("plan", "host", 1.0, 3.5, {"step": 1})
    assert (forward["name"], forward["ts"], forward["dur"]) == ("forward", 2.0, 7.0)
    assert plan["tid"] != forward["tid"]


def test_an_outer_span_comes_before_the_spans_inside_it() -> None:
    timeline = Timeline()
    timeline.record("host", "inner", 1_000, 2_000)
    timeline.record("host", "outer", 1_000, 5_000)
    assert [event["name"] for event in complete_events(timeline)] == ["outer", "inner"]


def test_threads_of_one_track_get_a_row_each() -> None:
    timeline = Timeline()
    timeline.record("host", "a", 0, 10)
    thread = threading.Thread(target=lambda: timeline.record("host", "b", 5, 15), name="helper")
    thread.start()
    thread.join()
    timeline.record("device", "c", 0, 10)
    assert row_labels(timeline) == {1: "host", 2: "host (helper)", 3: "device"}
    assert {event["name"]: event["tid"] for event in complete_events(timeline)} == {"a": 1, "b": 2, "c": 3}


def test_many_threads_lose_no_span() -> None:
    timeline = Timeline(max_spans=10_000)

    def work(track: str) -> None:
        for index in range(1000):
            with timeline.span(track, "work", index=index):
                pass

    threads = [threading.Thread(target=work, args=(f"track {number}",)) for number in range(8)]
    for thread in threads:
        thread.start()
    while any(thread.is_alive() for thread in threads):
        timeline.to_json()  # reading meanwhile disturbs nobody
    for thread in threads:
        thread.join()
    assert len(timeline.spans) == 8000
    assert timeline.num_dropped == 0


def test_beyond_the_limit_the_oldest_spans_are_forgotten_and_counted() -> None:
    timeline = Timeline(max_spans=3)
    for index in range(10):
        timeline.record("host", str(index), index, index + 1)
    assert [span.name for span in timeline.spans] == ["7", "8", "9"]
    assert timeline.num_dropped == 7
    assert timeline.to_json()["otherData"]["dropped_spans"] == 7


def test_any_argument_can_be_written(tmp_path: Path) -> None:
    timeline = Timeline()
    timeline.record("host", "plan", 0, 1, a=np.int64(7), b=float("nan"), c=[1, 2], d=np.float32(0.5), e=None, f=True)
    timeline.write(tmp_path / "trace.json")
    arguments = json.loads((tmp_path / "trace.json").read_text())["traceEvents"][-1]["args"]
    assert arguments == {"a": 7, "b": "nan", "c": "[1, 2]", "d": 0.5, "e": None, "f": True}


def test_a_timeline_without_spans_is_a_trace_too(tmp_path: Path) -> None:
    Timeline().write(tmp_path / "trace.json")
    assert json.loads((tmp_path / "trace.json").read_text())["traceEvents"]


def test_nothing_is_recorded_when_nobody_watches() -> None:
    timeline = NullTimeline()
    with timeline.span("host", "outer", step=1), timeline.span("host", "inner"):
        timeline.record("device", "forward", 0, 1)
    assert timeline.spans == []
    assert timeline.num_dropped == 0
    assert timeline.span("host", "a") is timeline.span("host", "b")


@pytest.mark.parametrize(
    ("options", "message"),
    [
        ({"max_spans": 0}, "max_spans is 0"),
        ({"max_spans": True}, "max_spans is True"),
        ({"max_spans": 1.5}, "max_spans is 1.5"),
        ({"rank": -1}, "rank is -1"),
    ],
)
def test_a_bad_option_is_named(options: dict[str, Any], message: str) -> None:
    with pytest.raises(ConfigError, match=message):
        Timeline(**options)
