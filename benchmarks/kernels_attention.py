"""Attention on a GPU, over cached records and over a table of keys, against the floors of memory and tensor cores.

The floor is the larger of two: of the bytes that a call must read and write, at the rate of a large copy; and of its
products, at 790 TFLOP/s, which a large product of bfloat16 matrices reaches. Calls of a captured graph take turns on
several sets of queries and slots, which name random records of more than the L2 cache holds.
"""

from __future__ import annotations

import functools
from collections.abc import Callable, Iterator, Sequence

import torch
from cuda_timing import TENSOR_TFLOPS, copy_rate, graph_time_us, require_gpu
from report import Row, arguments, publish

from thalweg.kernels import RecordFormat, bind

Call = Callable[[], object]
Case = tuple[str, int, float, Sequence[Call]]
"""What is measured, bytes that a call must move, its floating-point operations, and calls on different buffers."""

HEADS, DIM, WINDOW, SELECTED, RING = 64, 512, 128, 512, 134
ops = bind("sm90")


def view(record_format: RecordFormat, entries: int, num_bytes: int) -> torch.Tensor:
    """Random records of numbers of about the same size, in pages of so many entries."""
    record, data = record_format.record_bytes(DIM), record_format.data_bytes(DIM)
    pages = torch.randint(
        0, 120, (num_bytes // (entries * record), entries, 1, record), dtype=torch.uint8, device="cuda"
    )
    pages[..., data:] = 120 if record_format is RecordFormat.MXFP8 else 56
    return pages


def random_slots(records: torch.Tensor, lists: int, width: int) -> torch.Tensor:
    """int32 [lists, width]."""
    return torch.randint(0, records.shape[0] * records.shape[1], (lists, width), dtype=torch.int32, device="cuda")


def decode(num_bytes: int, batches: Sequence[int]) -> Iterator[Case]:
    """Steps of so many query rows, each with a list of its own; then rows that share lists."""
    window, sink = view(RecordFormat.MXFP8, RING, num_bytes), torch.zeros(HEADS, device="cuda")
    for record_format in (RecordFormat.FP4_MAIN, RecordFormat.MXFP8, None):
        main = None if record_format is None else view(record_format, 64, num_bytes)
        selected = 0 if record_format is None else SELECTED
        listed = WINDOW * 528 + (0 if record_format is None else SELECTED * record_format.record_bytes(DIM))
        label = "window only" if record_format is None else f"window and {SELECTED} {record_format.name}"
        some = batches if record_format is RecordFormat.FP4_MAIN else batches[-1:]
        for rows, shared in [(rows, 1) for rows in some] + [(6 * rows, 6) for rows in some[-1:]]:
            lists = rows // shared
            calls: list[Call] = []
            for _ in range(max(3, 768 // rows)):
                q = torch.randn(rows, HEADS, DIM, device="cuda").bfloat16()
                slots = None if main is None else random_slots(main, lists, SELECTED)
                given = (q, window, random_slots(window, lists, WINDOW), main, slots)
                fallback = record_format or RecordFormat.MXFP8
                calls.append(functools.partial(ops.paged_sparse_attention, *given, fallback, sink, 1e-3))
            name = f"{rows} rows, {label}" + (f", lists of {shared} rows" if shared > 1 else "")
            moved = lists * listed + rows * 4 * HEADS * DIM
            yield name, moved, 4.0 * rows * HEADS * DIM * (WINDOW + selected), calls


def prefill(num_keys: int, rows: int) -> Iterator[Case]:
    """Rows of a chunk: each has its window and random entries of the table."""
    keys, sink = torch.randn(num_keys, DIM, device="cuda").bfloat16(), torch.zeros(HEADS, device="cuda")
    q = torch.randn(rows, HEADS, DIM, device="cuda").bfloat16()
    first = torch.arange(rows, device="cuda")[:, None] % (num_keys - WINDOW)
    indices = torch.cat(
        (first + torch.arange(WINDOW, device="cuda"), torch.randint(0, num_keys, (rows, SELECTED), device="cuda")), 1
    ).int()
    moved = 2 * (keys.numel() + 2 * q.numel()) + 4 * indices.numel()
    flops = 4.0 * rows * HEADS * DIM * (WINDOW + SELECTED)
    call = functools.partial(ops.sparse_attention, q, keys, indices, sink, DIM**-0.5)
    yield f"{rows} rows, {WINDOW} + {SELECTED} of {num_keys} keys", moved, flops, [call]


def measure(cases: Iterator[Case], rate: float, replays: int) -> list[Row]:
    """rate: of the memory, in bytes per microsecond."""
    rows: list[Row] = []
    for name, moved, flops, calls in cases:
        floors = moved / rate, flops / TENSOR_TFLOPS / 1e6
        floor, us = max(floors), graph_time_us(calls, replays)
        bound = "memory" if floors[0] > floors[1] else "tensor cores"
        rows.append(
            {"case": name, "us": us, "floor, us": floor, "bound by": bound, "floor / us, %": 100 * floor / us}
            | {"TFLOP/s": flops / us / 1e6}
        )
    return rows


def main() -> None:
    options = arguments(__doc__ or "").parse_args()
    require_gpu()
    torch.manual_seed(0)
    rate = copy_rate(10 if options.smoke else 2000)
    print(f"a copy moves {rate / 1e3:.0f} GB/s")
    num_bytes, batches = (4_000_000, (1, 4)) if options.smoke else (200_000_000, (1, 16, 64, 128, 256))
    replays = 1 if options.smoke else 5
    rows = measure(decode(num_bytes, batches), rate, replays)
    for size in (64,) if options.smoke else (2048, 8192):
        rows += measure(prefill(1000 if options.smoke else 65_536, size), rate, replays)
    publish(rows, options.json)


if __name__ == "__main__":
    main()
