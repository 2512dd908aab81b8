"""Timing of work on a CUDA device: graphs of several calls, replayed, against the floors of bytes and products."""

from __future__ import annotations

import functools
import statistics
from collections.abc import Callable, Sequence

import torch
from report import Row, cannot_run

Call = Callable[[], object]
TENSOR_TFLOPS = 790.0
"""What a large product of bfloat16 matrices reaches on an H200."""


def graph_time_us(calls: Sequence[Call], replays: int = 5) -> float:
    """Microseconds of one call: the median over replays of a graph that holds all of them, divided by their number.

    Every call runs once before it is captured, so that nothing is compiled or loaded inside. Give calls that touch
    different buffers of more than the L2 cache in all, or the times are those of the cache.
    """
    for call in calls:
        call()
    torch.cuda.synchronize()
    graph = torch.cuda.CUDAGraph()
    with torch.cuda.graph(graph):
        for call in calls:
            call()
    return replay_time_us(graph, replays) / len(calls)


def replay_time_us(graph: torch.cuda.CUDAGraph, replays: int = 5) -> float:
    """Microseconds of a replay: the median of several, behind one that does not count."""
    times: list[float] = []
    for _ in range(replays + 1):
        start, end = torch.Event("cuda", enable_timing=True), torch.Event("cuda", enable_timing=True)
        start.record()
        graph.replay()
        end.record()
        end.synchronize()
        times.append(1000 * start.elapsed_time(end))
    return statistics.median(times[1:])


def copy_rate(megabytes: int = 2000, repeats: int = 5) -> float:
    """Bytes per microsecond, read and written, of the fastest of several large copies."""
    source = torch.rand(megabytes << 18, device="cuda")
    copy = torch.empty_like(source)
    return 2 * source.nbytes / min(graph_time_us([functools.partial(copy.copy_, source)], 1) for _ in range(repeats))


def against_floors(calls: Sequence[Call], num_bytes: float, flops: float, bytes_per_us: float) -> Row:
    """The time of a call beside the larger of two floors: that of its bytes, and that of its products."""
    time_us = graph_time_us(calls)
    floors = num_bytes / bytes_per_us, flops / TENSOR_TFLOPS / 1e6
    return {
        "us": time_us,
        "floor us": max(floors),
        "bound by": "bytes" if floors[0] >= floors[1] else "products",
        "% of floor": 100 * max(floors) / time_us,
        "TFLOP/s": flops / time_us / 1e6,
    }


def device_line() -> str:
    """The device and the versions that figures belong to."""
    capability = "".join(map(str, torch.cuda.get_device_capability()))
    return f"{torch.cuda.get_device_name()} (SM{capability}), torch {torch.__version__}, CUDA {torch.version.cuda}"


def require_cuda(otherwise: str) -> None:
    """End the program unless torch finds a GPU. otherwise: what is needed, or goes without one."""
    if not torch.cuda.is_available():
        build = "" if torch.version.cuda else f", as torch {torch.__version__} is built without CUDA"
        cannot_run(f"torch finds no CUDA device{build}; {otherwise}")


def require_gpu() -> None:
    """End the program unless there is a GPU that the kernels of sm90 run on."""
    require_cuda("this benchmark needs a GPU of compute capability 9.0")
    capability = torch.cuda.get_device_capability()
    if capability != (9, 0):
        found = ".".join(map(str, capability))
        cannot_run(f"{torch.cuda.get_device_name()} has compute capability {found}; this benchmark needs 9.0")
