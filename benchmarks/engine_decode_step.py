"""Whole steps of eight layers of real width, decode as a graph and a long prompt in chunks, against the sum of floors.

Weights are random (the Engram table has 1/16 of the rows of the release, each as wide), so is the cache, and every
record lies where a shuffled block table says. A step is embedding, eight layers, final norm and logits. A floor is the
larger of bytes by the rate of a large copy and products by 790 TFLOP/s; what is counted is in step_costs.py. Every op
of a decode step and of the last chunk is timed alone, too: a graph of its calls in one step. `--smoke` runs a small
model on the CPU, by the clock of the host.
"""

from __future__ import annotations

import argparse
import functools
import time
from collections.abc import Sequence
from dataclasses import dataclass
from typing import cast

import torch
from cuda_timing import copy_rate, device_line, graph_time_us, require_gpu
from report import Row, arguments, publish, render_table
from step_costs import Call, RecordingOps
from step_inputs import Sequences
from step_timing import HEAD, floor_us, host_time_us, op_rows, replayed

from thalweg.kernels import BoundOps, bind
from thalweg.model import DecodeMetadata, ForwardBatch, ModelConfig, NativeModel, PrefillMetadata, small_config
from thalweg.model.native.dummy import dummy_model
from thalweg.model.real_width import real_width_config

CONTEXTS = (4096, 131072)
BATCHES = (64, 256)
PREFILL_TOKENS, PREFILL_CHUNK = 65536, 8192
TOKENS_BEYOND = 64
"""Positions of the rotary tables beyond the longest context."""
HOST_COPY_RATE = 1e4
"""Bytes per microsecond that stand for a rate where nothing is measured."""


@dataclass(frozen=True)
class Bench:
    """A model, its ops, which can be recorded, and sequences in its cache."""

    model: NativeModel
    ops: RecordingOps
    sequences: Sequences
    is_cuda: bool
    rate: float
    """Bytes per microsecond of a large copy."""

    @classmethod
    def build(cls, config: ModelConfig, device: torch.device, num_sequences: int, longest: int) -> Bench:
        """longest: tokens of the longest context."""
        is_cuda = device.type == "cuda"
        ops = RecordingOps(bind("sm90" if is_cuda else "cpu"))
        start = time.perf_counter()
        model = dummy_model(config, cast("BoundOps", ops), device, num_positions=longest + TOKENS_BEYOND)
        sequences = Sequences.random(config, num_sequences, longest, device)
        print(f"made {config.num_hidden_layers} layers in {time.perf_counter() - start:.1f} s", flush=True)
        rate = HOST_COPY_RATE
        if is_cuda:
            rate = copy_rate()
            print(f"a large copy moves {rate / 1e6:.2f} TB/s", flush=True)
        return cls(model, ops, sequences, is_cuda, rate)

    def step(self, batch: ForwardBatch, metadata: DecodeMetadata | PrefillMetadata) -> torch.Tensor:
        """Logits of every row in decode, of the last one in prefill."""
        memory = self.model.paged_memory(self.sequences.pools, metadata, batch.positions)
        hidden = self.model.forward(batch, memory)
        return self.model.logits(hidden[-1:] if isinstance(metadata, PrefillMetadata) else hidden)

    def recorded(self, batch: ForwardBatch, metadata: DecodeMetadata | PrefillMetadata) -> list[Call]:
        """The calls of a step."""
        calls: list[Call] = []
        self.ops.calls = calls
        self.step(batch, metadata)
        self.ops.calls = None
        return calls

    def op_table(self, title: str, calls: Sequence[Call]) -> list[Row]:
        """The times of ops alone, printed, too."""
        table = op_rows(calls, self.rate, graph_time_us if self.is_cuda else host_time_us)
        print(f"\n{title}: {len(calls)} ops\n{render_table(table)}\n", flush=True)
        return table

    def decode(self, batch: int, context: int) -> Row:
        """A step of one token in each of `batch` sequences."""
        inputs = self.sequences.decode(batch, context, self.model.config)
        step = functools.partial(self.step, *inputs)
        calls = self.recorded(*inputs)
        taken, gaps = replayed(step) if self.is_cuda else (host_time_us([step]), 0.0)
        table = self.op_table(f"decode, batch {batch}, context {context}", calls)
        head = next(row for row in table if row["op"] == HEAD)
        floor = floor_us(calls, self.rate)
        return {
            "step": "decode",
            "rows": batch,
            "context": context,
            "us": taken,
            "floor, us": floor,
            "floor / us, %": 100 * floor / taken,
            "without head, %": 100 * (floor - float(head["floor, us"])) / (taken - float(head["us"])),
            "ops alone, us": sum(float(row["us"]) for row in table),
            "launch gaps, %": gaps,
            "tokens / s": 1e6 * batch / taken,
        }

    def prefill(self, first: int, count: int, *, with_ops: bool) -> Row:
        """A chunk of one sequence behind its first tokens, by the clock of the host until the device is done.

        Ends the program where the logits are not finite.
        """
        inputs = self.sequences.prefill(first, count, self.model.config)
        start = time.perf_counter()
        logits = self.step(*inputs)
        if self.is_cuda:
            torch.cuda.synchronize()
        taken = 1e6 * (time.perf_counter() - start)
        if not bool(logits.isfinite().all()):
            raise SystemExit(f"logits behind a chunk at {first} are not finite")
        calls = self.recorded(*inputs)
        floor = floor_us(calls, self.rate)
        alone = self.op_table(f"prefill of {count} behind {first}", calls) if with_ops else []
        return {
            "step": "prefill",
            "rows": count,
            "context": first + count,
            "us": taken,
            "floor, us": floor,
            "floor / us, %": 100 * floor / taken,
            "without head, %": "",
            "ops alone, us": sum(float(row["us"]) for row in alone) if alone else "",
            "launch gaps, %": "",
            "tokens / s": 1e6 * count / taken,
        }


def measured(bench: Bench, batches: Sequence[int], contexts: Sequence[int], prefill: int, chunk: int) -> list[Row]:
    """The table of whole steps."""
    rows = [bench.decode(batch, context) for batch in batches for context in contexts]
    if prefill:
        bench.prefill(0, chunk, with_ops=False)  # loads the kernels
    for first in range(0, prefill, chunk):
        rows.append(bench.prefill(first, chunk, with_ops=first + chunk >= prefill))
    return rows


def parsed() -> argparse.Namespace:
    parser = arguments(__doc__ or "")
    sizes = {"batch": BATCHES, "context": CONTEXTS, "prefill": PREFILL_TOKENS}
    parser.add_argument("--batch", type=int, nargs="*", help="of decode steps; none: no decode")
    parser.add_argument("--context", type=int, nargs="+", help="of decode steps, in tokens")
    parser.add_argument("--prefill", type=int, metavar="TOKENS", help="of a prompt; 0: none")
    options = parser.parse_args()
    given = [f"--{name}" for name in sizes if getattr(options, name) is not None]
    if options.smoke and given:
        parser.error(f"--smoke has sizes of its own; {', '.join(given)} cannot be given with it")
    for name, default in sizes.items():
        if getattr(options, name) is None:
            setattr(options, name, default)
    if min(*options.batch, *options.context, 1) < 1:
        parser.error(f"--batch is {options.batch} and --context {options.context}; all of them must be at least 1")
    if options.prefill < 0 or options.prefill % PREFILL_CHUNK:
        parser.error(f"--prefill is {options.prefill}; it must be a multiple of {PREFILL_CHUNK}, or 0")
    if not options.batch and not options.prefill:
        parser.error("without --batch and with --prefill 0 there is nothing to measure")
    return options


def main() -> None:
    options = parsed()
    torch.set_num_threads(1)
    if options.smoke:
        config = small_config(hidden_size=256, moe_intermediate_size=128, vocab_size=288)
        bench = Bench.build(config, torch.device("cpu"), 2, 256)
        publish(measured(bench, (2,), (200,), 128, 64), options.json)
        return
    require_gpu()
    print(device_line())
    count, longest = max([1, *options.batch]), max([*options.context, options.prefill])
    bench = Bench.build(real_width_config(), torch.device("cuda"), count, longest)
    rows = measured(bench, options.batch, options.context, options.prefill, PREFILL_CHUNK)
    print(f"{torch.cuda.max_memory_allocated() / 1e9:.1f} GB of memory at most")
    publish(rows, options.json)


if __name__ == "__main__":
    main()
