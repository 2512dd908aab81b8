"""Times of a step and of its ops, each alone, against their floors."""

from __future__ import annotations

import time
from collections.abc import Callable, Sequence

import torch
from cuda_timing import replay_time_us
from report import Row
from step_costs import Call, Cost, cost, label

LEAST_CALLS = 16
"""In a graph that times an op: one of few calls would be the launch of a graph."""
Clock = Callable[[Sequence[Callable[[], object]]], float]
"""Microseconds of one of the calls, on average."""
HEAD = "head"
"""The op of the logits, told apart: a model of forty layers has one, too."""


def op_rows(calls: Sequence[Call], bytes_per_us: float, clock: Clock) -> list[Row]:
    """Per op: its calls in a step, what they take together, their floor. The last call is that of the head."""
    groups: dict[str, list[Call]] = {}
    for call in calls:
        groups.setdefault(HEAD if call is calls[-1] else label(call), []).append(call)
    rows: list[Row] = []
    for name, group in groups.items():
        costs = [cost(call) for call in group]
        floor = sum(item.floor_us(bytes_per_us) for item in costs)
        total = Cost(sum(item.num_bytes for item in costs), sum(item.flops for item in costs))
        taken = clock([call.again for call in group] * -(-LEAST_CALLS // len(group))) * len(group)
        rows.append(
            {
                "op": name,
                "calls": len(group),
                "us": taken,
                "MB": total.num_bytes / 1e6,
                "GFLOP": total.flops / 1e9,
                "floor, us": floor,
                "floor / us, %": 100 * floor / taken,
            }
        )
    return sorted(rows, key=lambda row: -float(row["us"]))


def floor_us(calls: Sequence[Call], bytes_per_us: float) -> float:
    """The sum of the floors of all calls."""
    return sum(cost(call).floor_us(bytes_per_us) for call in calls)


def replayed(step: Callable[[], torch.Tensor]) -> tuple[float, float]:
    """Microseconds of a replay of the captured step, and its launch gaps in percent.

    Ends the program where a replay differs from the eager step.
    """
    expected = step()
    torch.cuda.synchronize()
    graph = torch.cuda.CUDAGraph()
    with torch.cuda.graph(graph):
        found = step()
    taken = replay_time_us(graph)
    if not torch.equal(found, expected):
        raise SystemExit(f"a replay differs from the eager step in {int((found != expected).sum())} logits")
    return taken, launch_gaps(graph)


def launch_gaps(graph: torch.cuda.CUDAGraph) -> float:
    """Share of a replay, in percent, in which no kernel runs."""
    activities = [torch.profiler.ProfilerActivity.CUDA]
    with torch.profiler.profile(activities=activities, acc_events=True) as profile:
        graph.replay()
        torch.cuda.synchronize()
    spans = sorted(
        (event.time_range.start, event.time_range.end)
        for event in profile.events()
        if event.device_type == torch.autograd.DeviceType.CUDA  # type: ignore[attr-defined]
    )
    busy, last = 0.0, spans[0][0]
    for start, end in spans:
        busy += max(0.0, end - max(start, last))
        last = max(last, end)
    return float(100 * (1 - busy / (last - spans[0][0])))


def host_time_us(calls: Sequence[Callable[[], object]]) -> float:
    """Microseconds of one call on this thread, once."""
    start = time.thread_time()
    for call in calls:
        call()
    return 1e6 * (time.thread_time() - start) / len(calls)
