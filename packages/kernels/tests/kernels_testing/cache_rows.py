"""Rows of number formats and of the cache: casts, records, load plans, and what a step reads and writes where."""

from __future__ import annotations

import torch
from kernels_testing.row_cases import FLOATS, ROWS, Flat, Op, fields, integers, random, rows_of, written
from torch import Tensor

from thalweg.kernels import RecordFormat
from thalweg.kernels.reference import quant
from thalweg.kernels.testing import RowCall, Rows

WIDTH, ENTRIES = 96, 4
STORES = {"store_mxfp8": "MXFP8", "store_fp4_e4m3": "FP4_MAIN", "store_mxfp4_index": "MXFP4_INDEX"}


def spread_out(dtype: torch.dtype) -> Tensor:
    """[ROWS, WIDTH] of every magnitude, with zeros, and NaN in one row."""
    values = random(ROWS, WIDTH, dtype=dtype)
    values *= torch.logspace(-20, 20, ROWS, dtype=torch.float64).unsqueeze(-1).to(dtype)
    values[5], values[9, 3] = 0, torch.nan
    return values


def cast(dtype: torch.dtype) -> RowCall:
    x = spread_out(dtype)
    return lambda op, ids: op(x[ids])


for name in ("fake_mxfp8", "fake_mxfp4", "fake_fp4_e4m3", "quantize_mxfp8", "quantize_mxfp4", "quantize_fp4_e4m3"):
    rows_of(name, dtype=FLOATS)(cast)


def decoding(format_name: str) -> RowCall:
    codes, scales = getattr(quant, f"quantize_{format_name}")(spread_out(torch.float32))
    return lambda op, ids: op(codes[ids], scales[ids])


for name in ("mxfp8", "mxfp4", "fp4_e4m3"):
    rows_of(f"dequantize_{name}", format_name=[name])(decoding)


@rows_of("quantize_fp8_weight", num_rows=9, counts=range(1, 10))
def quantize_fp8_weight() -> RowCall:
    """A row is a row of tiles."""
    weight = random(9, 32, 64)

    def call(op: Op, ids: Tensor) -> Rows:
        codes, scales = op(weight[ids].flatten(0, 1))
        return codes.view(-1, 32, 64), scales

    return call


@rows_of("dequantize_fp8_weight", num_rows=9, counts=range(1, 10))
def dequantize_fp8_weight() -> RowCall:
    codes, scales = quant.quantize_fp8_weight(random(9 * 32, 64))
    return lambda op, ids: op(codes.view(9, 32, 64)[ids].flatten(0, 1), scales[ids]).view(-1, 32, 64)


@rows_of("cast_per_token", value_format=["e4m3", "e2m1"], scale_format=["ue8m0", "float32", "e4m3"])
def cast_per_token(value_format: str, scale_format: str) -> RowCall:
    x = spread_out(torch.float32).nan_to_num()
    return lambda op, ids: op(x[ids], value_format, 32, scale_format)


@rows_of("pack_scales")
def pack_scales() -> RowCall:
    scales = 2.0 ** integers(-100, 100, ROWS, 8)
    return lambda op, ids: op(scales[ids])


def empty_view(record_format: RecordFormat) -> Tensor:
    pages = -(-ROWS // ENTRIES)
    return torch.zeros(pages, ENTRIES, 1, record_format.record_bytes(WIDTH), dtype=torch.uint8)


def slots_of(ids: Tensor) -> Tensor:
    """Every seventh row goes nowhere."""
    return torch.where(ids % 7 == 3, -1, ids).int()


def stored(op: Op, record_format: RecordFormat, rows: Tensor, ids: Tensor) -> Rows:
    """The bytes of each row's slot. Repeated rows are written once: slots must be distinct."""
    given = ids.unique()

    def write(view: Tensor) -> None:
        if op.__name__ == "store_records":
            op(view, slots_of(given), rows[given], record_format)
        else:
            op(view, slots_of(given), rows[given])

    view = written(empty_view(record_format), write)
    if not record_format.is_block_split:
        return view.flatten(0, 1)[ids]
    data, scales = view.flatten(1).split([ENTRIES * WIDTH // 2, ENTRIES * WIDTH // 32], 1)
    return data.reshape(-1, WIDTH // 2)[ids], scales.reshape(-1, WIDTH // 32)[ids]


def storing(format_name: str) -> RowCall:
    rows, record_format = spread_out(torch.float32), RecordFormat[format_name]
    return lambda op, ids: stored(op, record_format, rows, ids)


rows_of("store_records", format_name=[item.name for item in RecordFormat])(storing)
for name, format_name in STORES.items():
    rows_of(name, format_name=[format_name])(storing)


def filled(format_name: str) -> tuple[Tensor, RecordFormat]:
    record_format, view = RecordFormat[format_name], empty_view(RecordFormat[format_name])
    return integers(0, 120, *view.shape).to(torch.uint8), record_format


def gathering(format_name: str) -> RowCall:
    view, record_format = filled(format_name)
    return lambda op, ids: op(view, slots_of(ids), record_format)


def loading(format_name: str) -> RowCall:
    """A load plan with one segment per row."""
    view, record_format = filled(format_name)

    def call(op: Op, ids: Tensor) -> Rows:
        return op(view, segments_of(ids), ids.shape[0], record_format)

    return call


def segments_of(ids: Tensor) -> Tensor:
    """One entry each, from anywhere; every seventh a row of zeros."""
    page, entry = torch.where(ids % 7 == 3, -1, ids // ENTRIES), ids % ENTRIES
    return torch.stack((page, entry, entry + 1, torch.arange(ids.shape[0], device=ids.device)), 1)


for name in ("gather_records", "gather_parts"):
    rows_of(name, format_name=[item.name for item in RecordFormat])(gathering)
for name in ("load_records", "load_parts"):
    rows_of(name, format_name=[item.name for item in RecordFormat])(loading)


@rows_of("segments_to_slots")
def segments_to_slots() -> RowCall:
    return lambda op, ids: op(segments_of(ids), ids.shape[0], ENTRIES)


@rows_of("store_draft_rows")
def store_draft_rows() -> RowCall:
    """Slot 0 takes nothing; a repeated row is written once."""
    rows = random(ROWS, 3, 50, dtype=torch.float32)

    def call(op: Op, ids: Tensor) -> Rows:
        given = ids.unique()
        return written(torch.zeros(ROWS, 3, 50), lambda pool: op(pool, given, rows[given]))[ids]

    return call


@rows_of("draft_metadata")
def draft_metadata() -> RowCall:
    """Some sequences are padding, some short."""
    slots, positions = integers(1, 99, ROWS), integers(-1, 60, ROWS, seed=1)

    def call(op: Op, ids: Tensor) -> Rows:
        made = op(slots[ids], positions[ids], draft_length=3, window_size=16, ring_length=20)
        return tuple(part.view(ids.shape[0], -1) for part in fields(made))

    return call


@rows_of("decode_metadata")
def decode_metadata() -> RowCall:
    """Sequences with 1 to 4 queries and 1 to 3 blocks. The number of a query's sequence in the step is left out."""
    flat = Flat(integers(1, 5, ROWS), 4)
    contexts, blocks = integers(4, 25, ROWS, seed=1), integers(1, 99, ROWS, 3, seed=2).int()
    widths = -(-contexts // 8)

    def call(op: Op, ids: Tensor) -> Rows:
        made = op(
            flat.lengths[ids],
            contexts[ids],
            ids,
            Flat(widths, 3).pack(blocks, ids),
            torch.cat((torch.zeros(1, dtype=torch.int64, device=ids.device), widths[ids].cumsum(0))),
            ids % 9 == 4,
            tokens_per_block=8,
            window_size=6,
            ring_length=10,
            ratios=(1, 2),
            table_width=4,
            num_queries=int(flat.lengths[ids].sum()),
            max_blocks=4,
        )
        by_ratio = [part for ratios in fields(made)[-3:] for part in ratios.values()]
        parts = (made.positions, made.valid_mask, made.state_slots, made.window_store_slots, made.window_reads)
        return tuple(flat.spread(part, ids) for part in (*parts, made.context_lengths, made.block_tables, *by_ratio))

    return call


def left_behind() -> tuple[Flat, Tensor, Tensor, Tensor, Tensor, Tensor]:
    """Sequences with 1 to 4 queries, two of three with a row in the step before; (flat, has one, tokens [ROWS],
    drafts [ROWS, 3], accepted [ROWS], known tokens and drafts [ROWS, 4])."""
    has_previous = torch.arange(ROWS) % 3 > 0
    ids = [integers(0, 50, ROWS, *shape, seed=seed) for seed, shape in enumerate([(), (3,)])]
    return Flat(integers(1, 5, ROWS), 4), has_previous, *ids, integers(0, 4, ROWS), integers(0, 50, ROWS, 4, seed=9)


@rows_of("correct_context_lengths")
def correct_context_lengths() -> RowCall:
    flat, has_previous, _, _, accepted, _ = left_behind()
    base = integers(10, 99, ROWS)

    def call(op: Op, ids: Tensor) -> Rows:
        return op(base[ids], flat.lengths[ids], torch.where(has_previous[ids], ids, -1), accepted, 3)

    return call


@rows_of("gather_token_ids")
def gather_token_ids() -> RowCall:
    flat, has_previous, tokens, drafts, _, known = left_behind()

    def call(op: Op, ids: Tensor) -> Rows:
        lengths = flat.lengths[ids]
        previous = torch.where(has_previous[ids], ids, -1)
        return flat.spread(op(lengths, previous, known[ids], tokens, drafts, int(lengths.sum())), ids)

    return call


@rows_of("gather_ngram_ids")
def gather_ngram_ids() -> RowCall:
    flat, has_previous, tokens, drafts, accepted, known = left_behind()
    windows, compressed = integers(-1, 50, ROWS, 5, seed=4), torch.arange(50).flip(0)

    def call(op: Op, ids: Tensor) -> Rows:
        lengths, previous = flat.lengths[ids], torch.where(has_previous[ids], ids, -1)
        host = (lengths, previous, known[ids], windows[ids])
        made = op(*host, tokens, drafts, accepted, compressed, 7, int(lengths.sum()))
        return flat.spread(made, ids)

    return call
