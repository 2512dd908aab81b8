"""Who did what when: spans on named tracks, written as a Chrome trace that Perfetto and chrome://tracing open.

Times are `time.perf_counter_ns`, which all processes of one host share on Linux: traces of several ranks can be put
into one file, because each rank is a process of its own in it.
"""

from __future__ import annotations

import json
import math
import os
import threading
import time
from collections import deque
from contextlib import AbstractContextManager, nullcontext
from pathlib import Path
from typing import Any, NamedTuple

from thalweg.interfaces import ConfigError, shown

MAX_SPANS = 200_000
"""Spans kept by default, about 90 MB when each has two arguments; then the oldest are forgotten."""


class Span(NamedTuple):
    """Something that went on for a while."""

    track: str
    thread_id: int
    name: str
    start_ns: int
    end_ns: int
    arguments: dict[str, Any]


class Timeline:
    """Records spans from any thread and keeps the newest `max_spans` of them.

    Threads that record on one track get a row each, so that the spans of a row nest or follow each other.
    rank: the process of the trace. Raises ConfigError for `max_spans` below 1 or a negative rank.
    """

    def __init__(self, *, rank: int = 0, max_spans: int = MAX_SPANS) -> None:
        for name, value, least in (("rank", rank, 0), ("max_spans", max_spans, 1)):
            if not isinstance(value, int) or isinstance(value, bool) or value < least:
                raise ConfigError(f"{name} is {shown(value)}; it must be an integer of at least {least}")
        self._rank = rank
        self._lock = threading.Lock()
        self._spans: deque[Span] = deque(maxlen=max_spans)
        self._num_recorded = 0
        self._thread_names: dict[int, str] = {}

    def span(self, track: str, name: str, /, **arguments: Any) -> AbstractContextManager[None]:
        """Record what the `with` block takes, also when it raises. arguments: shown beside the span."""
        return _Recorder(self, track, name, arguments)

    def record(self, track: str, name: str, start_ns: int, end_ns: int, /, **arguments: Any) -> None:
        """Take a span that was measured elsewhere; times of `time.perf_counter_ns`, on the calling thread's row."""
        thread_id = threading.get_ident()
        span = Span(track, thread_id, name, start_ns, max(start_ns, end_ns), arguments)
        with self._lock:
            if thread_id not in self._thread_names:
                self._thread_names[thread_id] = threading.current_thread().name
            self._spans.append(span)
            self._num_recorded += 1

    @property
    def spans(self) -> list[Span]:
        """The spans that are kept, in the order in which they ended."""
        with self._lock:
            return list(self._spans)

    @property
    def num_dropped(self) -> int:
        """Spans that were forgotten because there were more than `max_spans`."""
        with self._lock:
            return self._num_recorded - len(self._spans)

    def to_json(self) -> dict[str, Any]:
        """The trace: metadata events that name process and rows, then a complete event per span, in microseconds."""
        spans = sorted(self.spans, key=lambda span: (span.start_ns, -span.end_ns))  # outer spans before inner ones
        rows = self._rows(spans)
        events: list[dict[str, Any]] = [_metadata("process_name", self._rank, 0, f"thalweg rank {self._rank}")]
        for row, label in rows.values():
            events.append(_metadata("thread_name", self._rank, row, label))
            events.append(_metadata("thread_sort_index", self._rank, row, row))
        for span in spans:
            events.append(
                {
                    "name": span.name,
                    "cat": span.track,
                    "ph": "X",
                    "ts": span.start_ns / 1000,
                    "dur": (span.end_ns - span.start_ns) / 1000,
                    "pid": self._rank,
                    "tid": rows[span.track, span.thread_id][0],
                    "args": {key: _plain(value) for key, value in span.arguments.items()},
                }
            )
        return {
            "traceEvents": events,
            "displayTimeUnit": "ms",
            "otherData": {"clock": "perf_counter_ns", "os_process": os.getpid(), "dropped_spans": self.num_dropped},
        }

    def write(self, path: str | os.PathLike[str]) -> None:
        """Write the trace as JSON. Raises OSError when the file cannot be written."""
        Path(path).write_text(json.dumps(self.to_json(), allow_nan=False), encoding="utf-8")

    def _rows(self, spans: list[Span]) -> dict[tuple[str, int], tuple[int, str]]:
        """Row number and label of every (track, thread), tracks in order of their first span."""
        pairs = dict.fromkeys((span.track, span.thread_id) for span in spans)
        tracks = list(dict.fromkeys(track for track, _ in pairs))
        ordered = sorted(pairs, key=lambda pair: tracks.index(pair[0]))
        rows: dict[tuple[str, int], tuple[int, str]] = {}
        for row, (track, thread_id) in enumerate(ordered, start=1):
            is_first = all(earlier != track for earlier, _ in rows)
            label = track if is_first else f"{track} ({self._thread_names[thread_id]})"
            rows[track, thread_id] = row, label
        return rows


class NullTimeline(Timeline):
    """Records nothing: what an engine has that nobody watches. A span costs one call."""

    def __init__(self) -> None:
        super().__init__(max_spans=1)
        self._nothing = nullcontext()

    def span(self, track: str, name: str, /, **arguments: Any) -> AbstractContextManager[None]:
        return self._nothing

    def record(self, track: str, name: str, start_ns: int, end_ns: int, /, **arguments: Any) -> None:
        """Forget it."""


class _Recorder:
    """The `with` block of one span."""

    __slots__ = ("_arguments", "_name", "_start_ns", "_timeline", "_track")

    def __init__(self, timeline: Timeline, track: str, name: str, arguments: dict[str, Any]) -> None:
        self._timeline = timeline
        self._track = track
        self._name = name
        self._arguments = arguments

    def __enter__(self) -> None:
        self._start_ns = time.perf_counter_ns()

    def __exit__(self, *_: object) -> None:
        end_ns = time.perf_counter_ns()
        self._timeline.record(self._track, self._name, self._start_ns, end_ns, **self._arguments)


def _metadata(kind: str, pid: int, tid: int, value: str | int) -> dict[str, Any]:
    key = "sort_index" if kind.endswith("sort_index") else "name"
    return {"name": kind, "ph": "M", "pid": pid, "tid": tid, "ts": 0, "args": {key: value}}


def _plain(value: Any) -> Any:
    """The value if JSON has it, a numpy scalar's value, else how it prints."""
    if value is None or isinstance(value, bool | int | str):
        return value
    if isinstance(value, float):
        return value if math.isfinite(value) else str(value)
    item = getattr(value, "item", None)
    if item is not None and getattr(value, "ndim", None) == 0:
        return _plain(item())
    return str(value)
