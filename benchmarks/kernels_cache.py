"""Kernels of the cache and of a step's metadata on a GPU, against the floor of the memory.

A floor counts the bytes that a call must read and write, at the rate of a large copy; a copy of as many bytes as a load
moves says what a launch of that size takes. Calls of a captured graph take turns on several sets of buffers, and keep
what they return, so that nothing comes from the L2 cache or stays there. Small ops have no floor: their time is that of
a launch and of the few steps that depend on each other.
"""

from __future__ import annotations

import functools
from collections.abc import Callable, Iterator, Sequence
from typing import Any

import torch
from cuda_timing import copy_rate, graph_time_us, require_gpu
from report import Row, arguments, publish

from thalweg.kernels import RecordFormat, bind

Call = Callable[[], object]
Case = tuple[str, int, Sequence[Call]]
"""What is measured, the bytes that a call must move (0 where that is not the limit), and calls on different buffers."""

FORMATS = ((RecordFormat.MXFP8, 512, 128), (RecordFormat.FP4_MAIN, 512, 64), (RecordFormat.MXFP4_INDEX, 128, 64))
BLOCK_BYTES = 114_048
RING, WINDOW, DRAFTS = 134, 128, 5
COLD_BYTES = 300_000_000
"""Of all sets of buffers, at least: several times the L2 cache."""
ops = bind("sm90")


def pages(record_format: RecordFormat, width: int, entries: int, rows: int) -> torch.Tensor:
    """A view of as many entries as there are rows, each page in a block of its own."""
    record = record_format.record_bytes(width)
    stride = -(-entries * record // 1152) * 1152
    pool = torch.randint(0, 120, (-(-rows // entries), stride), dtype=torch.uint8, device="cuda")
    return pool[:, : entries * record].view(-1, entries, 1, record)


def shuffled_pages(entries: int, rows: int) -> torch.Tensor:
    """Slots that fill pages one after the other, the pages in any order."""
    order = torch.randperm(rows // entries, device="cuda")
    return (order[:, None] * entries + torch.arange(entries, device="cuda")).flatten().int()


def keeping(call: Call) -> Call:
    """The call, with what it returns kept: the next one gets other memory for it."""
    kept: list[object] = []
    return lambda: kept.append(call())


def records(rows: int, formats: Sequence[tuple[RecordFormat, int, int]] = FORMATS) -> Iterator[Case]:
    """Stores and loads of every format, and a copy of as many bytes."""
    for record_format, width, entries in formats:
        record = record_format.record_bytes(width)
        moved = rows * (2 * width + record + 4)
        sets = max(2, -(-COLD_BYTES // moved))
        views = [pages(record_format, width, entries, rows) for _ in range(sets)]
        x = [torch.randn(rows, width, device="cuda").bfloat16() for _ in range(sets)]
        slots, scattered = shuffled_pages(entries, rows), torch.randperm(rows, device="cuda").int()
        named = {"record_format": record_format}
        store = functools.partial(ops.store_records, slots=slots, **named)
        load = functools.partial(ops.gather_records, dtype=torch.bfloat16, **named)
        load_bytes = functools.partial(ops.gather_parts, slots=slots, **named)
        name = f"{record_format.name} {rows} x {width}"
        yield f"store {name}", moved, [functools.partial(store, v, rows=r) for v, r in zip(views, x, strict=True)]
        yield f"load {name}", moved, [keeping(functools.partial(load, v, slots)) for v in views]
        yield f"load scattered {name}", moved, [keeping(functools.partial(load, v, scattered)) for v in views]
        yield f"load bytes {name}", rows * (2 * record + 4), [keeping(functools.partial(load_bytes, v)) for v in views]
        same = [r.view(torch.uint8).view(-1)[: moved // 2] for r in x]
        yield f"copy of as much as a load of {name}", moved, [keeping(part.clone) for part in same]


def fused_stores(rows: int, sets: int) -> Iterator[Case]:
    """Norm, rotation and store; the normed rows are written as well."""
    for record_format, width, entries in FORMATS:
        view = pages(record_format, width, entries, max(rows, entries))
        x = [torch.randn(rows, width, device="cuda").bfloat16() for _ in range(sets)]
        angles = torch.rand(rows, 32, device="cuda") * 100
        given = (torch.rand(width, device="cuda"), 1e-6, angles.cos(), angles.sin())
        slots = shuffled_pages(entries, max(rows, entries))[:rows]
        moved = rows * (4 * width + record_format.record_bytes(width) + 4 + 256)
        calls = [keeping(functools.partial(ops.norm_rope_store, r, *given, view, slots, record_format)) for r in x]
        yield f"norm, RoPE, store {record_format.name} {rows} x {width}", moved, calls


def steps(sequences: int) -> Iterator[Case]:
    """What a decode step of so many sequences with all their drafts needs before its first layer, and each layer."""
    rows = sequences * (1 + DRAFTS)
    integers = functools.partial(torch.randint, dtype=torch.int32, device="cuda")
    lengths = torch.full((sequences,), 1 + DRAFTS, dtype=torch.int32, device="cuda")
    contexts = integers(100_000, 131_000, (sequences,))
    states = torch.arange(1, sequences + 1, dtype=torch.int32, device="cuda")
    offsets = torch.arange(sequences + 1, dtype=torch.int32, device="cuda") * 1024
    blocks, tables = integers(1, 500_000, (1024 * sequences,)), integers(1, 500_000, (rows, 1088))
    sizes: dict[str, Any] = {
        "tokens_per_block": 128, "window_size": WINDOW, "ring_length": RING, "ratios": (1, 2), "table_width": 1088,
        "num_queries": rows, "max_blocks": 1024, "block_tables": tables,
    }  # fmt: skip
    given = (lengths, contexts, states, blocks, offsets, torch.zeros(sequences, dtype=torch.bool, device="cuda"))
    label = f"{sequences} sequences, {rows} rows"
    decode = functools.partial(ops.decode_metadata, *given, **sizes)
    yield f"decode_metadata {label}", 4 * 1024 * (sequences + rows), [decode] * 4
    metadata = decode()
    yield (
        f"expand_window_reads {label}",
        4 * rows * WINDOW,
        [functools.partial(ops.expand_window_reads, metadata.window_reads, WINDOW, RING)] * 4,
    )
    topk = integers(0, 50_000, (rows, 512))
    yield (
        f"topk_to_slots {label}",
        8 * rows * 512,
        [functools.partial(ops.topk_to_slots, topk, metadata.visible_entries[2], tables, 64)] * 4,
    )
    named = {"draft_length": DRAFTS, "window_size": WINDOW, "ring_length": RING}
    yield f"draft_metadata {label}", 0, [functools.partial(ops.draft_metadata, states, contexts, **named)] * 4
    previous = torch.randperm(sequences, device="cuda").int()
    left = (integers(0, 129_000, (sequences,)), integers(0, 129_000, (sequences, DRAFTS)))
    accepted, own = integers(0, DRAFTS + 1, (sequences,)), integers(0, 129_000, (sequences, 1 + DRAFTS))
    yield (
        f"correct_context_lengths {label}",
        0,
        [functools.partial(ops.correct_context_lengths, contexts, lengths, previous, accepted, DRAFTS)] * 4,
    )
    yield (
        f"gather_token_ids {label}",
        0,
        [functools.partial(ops.gather_token_ids, lengths, previous, own, *left, rows)] * 4,
    )
    compressed = integers(0, 99_000, (129_280,))
    windows = integers(0, 99_000, (sequences, 2 + DRAFTS))
    ngram = functools.partial(ops.gather_ngram_ids, lengths, previous, own, windows, *left, accepted, compressed, 0)
    yield f"gather_ngram_ids {label}", 0, [functools.partial(ngram, rows)] * 4
    ring = torch.randn(sequences + 1, 7, 2, 512, device="cuda")
    both = [torch.randn(rows, 1024, device="cuda").chunk(2, 1) for _ in range(4)]
    pool = [
        functools.partial(ops.pool_decode, *b, ring, metadata.state_slots, metadata.context_lengths, 2) for b in both
    ]
    yield f"pool_decode {label}", rows * 512 * 4 * 5, pool


def shares(sequences: int, drafts: int) -> Iterator[Case]:
    """Sharing out half of the drafts' tokens."""
    previous = torch.randperm(sequences, device="cuda").int()
    confidences = torch.rand(sequences, drafts, device="cuda").sqrt()
    total = sequences + sequences * drafts // 2
    call = functools.partial(ops.redistribute, total, previous, confidences)
    yield f"redistribute {sequences} x {drafts}", 0, [call] * 8


def draft_rows(sequences: int) -> Iterator[Case]:
    """Log-probabilities of drafts into their pool."""
    pool = torch.zeros(sequences + 1, 2, 129_280, device="cuda")
    rows = torch.randn(sequences, 129_280, device="cuda")
    slots = torch.randperm(sequences, device="cuda") + 1
    calls = [functools.partial(ops.store_draft_rows, pool[:, place], slots, rows) for place in (0, 1)]
    yield f"store_draft_rows {sequences} x 129280", 8 * rows.numel(), calls


def chunks(rows: int) -> Iterator[Case]:
    """A chunk of one prompt through the compressor."""
    both = [torch.randn(rows, 1024, device="cuda").chunk(2, 1) for _ in range(4)]
    ring = torch.randn(4, 7, 2, 512, device="cuda")
    integers = functools.partial(torch.tensor, dtype=torch.int32, device="cuda")
    given = (integers([2]), integers([0, rows]), integers([1000]), integers([0, rows // 2]), 2)
    calls = [functools.partial(ops.pool_prefill, *b, ring, *given, num_entries=rows // 2) for b in both]
    yield f"pool_prefill {rows} x 512", rows * 512 * 4 * 5 // 2, calls


def main() -> None:
    options = arguments(__doc__ or "").parse_args()
    require_gpu()
    large, larger = (4096, 8192) if options.smoke else (131_072, 1_048_576)
    cases = [functools.partial(records, large), functools.partial(records, larger, FORMATS[2:])]
    cases += [functools.partial(fused_stores, large, 2)]
    cases += [functools.partial(fused_stores, rows, 4) for rows in (64, 384, 1536)]
    cases += [functools.partial(steps, sequences) for sequences in (64, 256)]
    cases += [functools.partial(shares, *size) for size in ((64, 7), (256, 7), (1024, 7), (1024, 5))]
    cases += [functools.partial(draft_rows, 256), functools.partial(chunks, 8192)]
    rate, table = copy_rate(), list[Row]()
    for case in cases:
        for name, moved, calls in case():
            us = graph_time_us(list(calls) * 2)
            floor = moved / rate
            share = f"{100 * floor / us:.0f} %" if moved else ""
            table.append({"case": name, "us": us, "MB": moved / 1e6, "floor us": floor, "of floor": share})
    table.append({"case": "copy, GB/s", "us": rate / 1000, "MB": 0.0, "floor us": 0.0, "of floor": ""})
    publish(table, options.json)


if __name__ == "__main__":
    main()
