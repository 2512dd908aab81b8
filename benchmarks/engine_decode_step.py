"""A whole decode step of eight layers of real width, replayed as a graph, against the sum of the floors of its ops.

Weights are random (the Engram table has 1/16 of the rows of the release, each as wide), so is the cache, and every
record lies where a shuffled block table says. The step is embedding, eight layers, final norm and logits. A floor is
the larger of bytes by the rate of a large copy and products by 790 TFLOP/s; what is counted is in step_costs.py. Every
op is timed alone, too: a graph of its calls in one step. `--prefill` runs a prompt in chunks. `--smoke` runs a small
model on the CPU, by the clock of the host.
"""

from __future__ import annotations

import argparse
import statistics
import time
from collections.abc import Callable, Sequence
from typing import cast

import torch
from cuda_timing import copy_rate, device_line, graph_time_us
from report import Row, arguments, publish, render_table
from step_costs import Call, Cost, RecordingOps, cost, label
from step_inputs import Sequences

from thalweg.kernels import BoundOps, bind
from thalweg.model import ForwardBatch, ModelConfig, NativeModel, small_config
from thalweg.model.metadata import DecodeMetadata
from thalweg.model.native.dummy import dummy_model
from thalweg.model.real_width import real_width_config

CONTEXTS = (4096, 131072)
BATCHES = (64, 256)
PREFILL_TOKENS, PREFILL_CHUNK = 65536, 8192
TOKENS_BEYOND = 64
"""Positions of the rotary tables beyond the longest context."""
LEAST_CALLS = 16
"""In a graph that times an op: one of few calls would be the launch of a graph."""
Clock = Callable[[Sequence[Callable[[], object]]], float]
HEAD = "head"
"""The op of the logits, told apart: a model of forty layers has one, too."""


class Step:
    """One decode step over fixed inputs."""

    def __init__(self, model: NativeModel, sequences: Sequences, batch: ForwardBatch, metadata: DecodeMetadata) -> None:
        self._model = model
        self._sequences = sequences
        self._batch = batch
        self._metadata = metadata

    def __call__(self) -> torch.Tensor:
        memory = self._model.paged_memory(self._sequences.pools, self._metadata, self._batch.positions)
        return self._model.logits(self._model.forward(self._batch, memory))


def op_rows(calls: Sequence[Call], bytes_per_us: float, clock: Clock) -> list[Row]:
    """Per op: its calls in a step, what they take together, their floor."""
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


def replayed(step: Step, replays: int = 5) -> tuple[float, float]:
    """Microseconds of a replay of the captured step, and its launch gaps in percent."""
    expected = step()
    torch.cuda.synchronize()
    graph = torch.cuda.CUDAGraph()
    with torch.cuda.graph(graph):
        found = step()
    times = []
    for _ in range(replays + 1):
        start, end = torch.Event("cuda", enable_timing=True), torch.Event("cuda", enable_timing=True)
        start.record()
        graph.replay()
        end.record()
        end.synchronize()
        times.append(1000 * start.elapsed_time(end))
    if not torch.equal(found, expected):
        raise SystemExit(f"a replay differs from the eager step in {int((found != expected).sum())} logits")
    return statistics.median(times[1:]), launch_gaps(graph)


def decode_rows(
    model: NativeModel, ops: RecordingOps, sequences: Sequences, batches: Sequence[int], contexts: Sequence[int]
) -> list[Row]:
    """The table of whole steps; that of ops is printed for each."""
    device = sequences.pools.blocks.device
    is_cuda = device.type == "cuda"
    rate = copy_rate() if is_cuda else 1e4
    rows: list[Row] = []
    for batch in batches:
        for context in contexts:
            step = Step(model, sequences, *sequences.decode(batch, context, model.config))
            calls: list[Call] = []
            ops.calls = calls
            step()
            ops.calls = None
            whole, gaps = replayed(step) if is_cuda else (host_time_us([step]), 0.0)
            table = op_rows(calls, rate, graph_time_us if is_cuda else host_time_us)
            print(f"\nbatch {batch}, context {context}: {len(calls)} ops\n{render_table(table)}\n", flush=True)
            floor = sum(float(row["floor, us"]) for row in table)
            head = next(row for row in table if row["op"] == HEAD)
            rows.append(
                {
                    "batch": batch,
                    "context": context,
                    "step, us": whole,
                    "floor, us": floor,
                    "floor / step, %": 100 * floor / whole,
                    "without head, %": 100 * (floor - float(head["floor, us"])) / (whole - float(head["us"])),
                    "ops alone, us": sum(float(row["us"]) for row in table),
                    "launch gaps, %": gaps,
                }
            )
    return rows


def prefill_rows(model: NativeModel, sequences: Sequences, num_tokens: int, chunk: int) -> list[Row]:
    """Milliseconds of every chunk of a prompt, once its kernels are loaded."""
    is_cuda = sequences.pools.blocks.device.type == "cuda"
    rows: list[Row] = []
    for first in (0, *range(0, num_tokens, chunk)):
        batch, metadata = sequences.prefill(first, chunk, model.config)
        start = time.perf_counter()
        memory = model.paged_memory(sequences.pools, metadata, batch.positions)
        logits = model.logits(model.forward(batch, memory)[-1:])
        if is_cuda:
            torch.cuda.synchronize()
        taken = 1000 * (time.perf_counter() - start)
        if not bool(logits.isfinite().all()):
            raise SystemExit(f"logits behind a chunk at {first} are not finite")
        rows.append({"first token": first, "tokens": chunk, "ms": taken, "tokens / s": 1000 * chunk / taken})
    return rows[1:]


def host_time_us(calls: Sequence[Callable[[], object]]) -> float:
    """Microseconds of one call on this thread, once."""
    start = time.thread_time()
    for call in calls:
        call()
    return 1e6 * (time.thread_time() - start) / len(calls)


def build(config: ModelConfig, device: torch.device, num_positions: int) -> tuple[NativeModel, RecordingOps]:
    ops = RecordingOps(bind("sm90" if device.type == "cuda" else "cpu"))
    start = time.perf_counter()
    model = dummy_model(config, cast("BoundOps", ops), device, num_positions=num_positions)
    print(f"made {config.num_hidden_layers} layers in {time.perf_counter() - start:.1f} s", flush=True)
    return model, ops


def parsed() -> argparse.Namespace:
    parser = arguments(__doc__ or "")
    parser.add_argument("--batch", type=int, nargs="*", default=BATCHES)
    parser.add_argument("--context", type=int, nargs="*", default=CONTEXTS)
    parser.add_argument("--prefill", action="store_true", help="a prompt in chunks instead of decode steps")
    return parser.parse_args()


def main() -> None:
    options = parsed()
    torch.set_num_threads(1)
    if options.smoke:
        config = small_config(hidden_size=256, moe_intermediate_size=128, vocab_size=288)
        model, ops = build(config, torch.device("cpu"), 1024)
        sequences = Sequences.random(config, 2, 256, torch.device("cpu"))
        publish([*decode_rows(model, ops, sequences, (2,), (200,))], options.json)
        return
    if not torch.cuda.is_available():
        raise SystemExit("torch finds no CUDA device; --smoke runs without one")
    print(device_line())
    config, longest = real_width_config(), max(*options.context, PREFILL_TOKENS if options.prefill else 0)
    model, ops = build(config, torch.device("cuda"), longest + TOKENS_BEYOND)
    count = 1 if options.prefill else max(options.batch)
    sequences = Sequences.random(config, count, longest, torch.device("cuda"))
    if options.prefill:
        rows = prefill_rows(model, sequences, PREFILL_TOKENS, PREFILL_CHUNK)
    else:
        rows = decode_rows(model, ops, sequences, options.batch, options.context)
    print(f"{torch.cuda.max_memory_allocated() / 1e9:.1f} GB of memory at most")
    publish(rows, options.json)


if __name__ == "__main__":
    main()
