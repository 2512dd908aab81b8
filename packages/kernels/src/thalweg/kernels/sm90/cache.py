"""Records of the cache on Hopper: encode rows into pages, and decode them back, by flat slot.

Lanes of a warp share a row (see `record_shape`), and a block takes as many rows as its lanes can hold. Slots that do
not exist store nothing and read zeros, since nothing is read back to refuse them.
"""
# Without postponed annotations: those of the kernels are their arguments' types to TileLang.
# mypy: disable-error-code="valid-type, name-defined, untyped-decorator"

import functools
from typing import Any

import torch
from torch import Tensor

from thalweg.interfaces import ConfigError
from thalweg.kernels.reference.cache import check_view
from thalweg.kernels.reference.record_format import RecordFormat
from thalweg.kernels.sm90.declared import implementation
from thalweg.kernels.sm90.index_rows import segments_to_slots
from thalweg.kernels.sm90.library import ARCHITECTURE, compiled, tilelang
from thalweg.kernels.sm90.record_codecs import codecs
from thalweg.kernels.sm90.record_lanes import Pages, lane_macros
from thalweg.kernels.sm90.record_shape import (
    HALF,
    PART,
    RESIDENT_BLOCKS,
    THREADS,
    RecordShape,
    pages_of,
    record_shape,
    stored_shape,
    unit_dtype,
)
from thalweg.kernels.sm90.tensors import aligned_rows, check_device, check_integers, name_of, span

ROW_DTYPES = (torch.bfloat16, torch.float32)


@functools.cache
def store_kernel(
    shape: RecordShape, rows_dtype: torch.dtype, slots_dtype: torch.dtype, architecture: str = ARCHITECTURE
) -> Any:
    """The compiled kernel that encodes rows into records."""
    T, code, memory = tilelang().language, codecs(), lane_macros()
    num_elements, num_rows = T.dynamic("num_elements", "int64"), T.dynamic("n")
    num_units, num_bytes = T.dynamic("num_units", "int64"), T.dynamic("num_bytes", "int64")
    lanes, per_block, parts = shape.lanes, THREADS // shape.lanes, shape.parts

    @T.prim_func
    def store_records(
        rows: T.Tensor((num_elements,), name_of(rows_dtype)),
        slots: T.Tensor((num_rows,), name_of(slots_dtype)),
        row_parts: T.int32,
        pool: T.Tensor((num_units,), name_of(unit_dtype(shape.unit))),
        pool_bytes: T.Tensor((num_bytes,), "uint8"),
        page_bytes: T.int64,
        entries: T.int32,
        capacity: T.int32,
    ) -> None:
        with T.Kernel(T.ceildiv(num_rows, per_block), threads=THREADS) as block:
            T.annotate_min_blocks_per_sm(RESIDENT_BLOCKS)
            lane = T.get_thread_binding() % lanes
            row, slot, part = T.alloc_var("int32"), T.alloc_var("int32"), T.alloc_var("int64")
            row = block * per_block + T.get_thread_binding() // lanes
            part = T.cast(T.min(row, num_rows - 1), "int64") * row_parts + T.min(lane, parts - 1)
            loaded, values = T.alloc_local((1, PART), name_of(rows_dtype)), T.alloc_local((PART,), "float32")
            words, scale = T.alloc_local((1, 4), "int32"), T.alloc_local((1,), "int32")
            slot = -1
            if row < num_rows and lane < parts:
                slot = T.cast(slots[row], "int32")
            memory.fetch(rows, part, PART, loaded, 0)
            for i in T.unroll(PART):
                values[i] = T.cast(loaded[0, i], "float32")
            code.encode(shape, values, words, scale)
            if slot >= 0 and slot < capacity:
                memory.write_record(shape, Pages(pool, pool_bytes, page_bytes, entries), slot, lane, words, scale)

    return compiled(store_records, architecture)


@functools.cache
def gather_kernel(
    shape: RecordShape, rows_dtype: torch.dtype, slots_dtype: torch.dtype, architecture: str = ARCHITECTURE
) -> Any:
    """The compiled kernel that decodes records into rows."""
    T, code, memory = tilelang().language, codecs(), lane_macros()
    num_elements, num_rows = T.dynamic("num_elements", "int64"), T.dynamic("n")
    num_units, num_bytes = T.dynamic("num_units", "int64"), T.dynamic("num_bytes", "int64")
    lanes, per_block, halves = shape.lanes, THREADS // shape.lanes, shape.width // HALF

    @T.prim_func
    def gather_records(
        rows: T.Tensor((num_elements,), name_of(rows_dtype)),
        slots: T.Tensor((num_rows,), name_of(slots_dtype)),
        pool: T.Tensor((num_units,), name_of(unit_dtype(shape.unit))),
        pool_bytes: T.Tensor((num_bytes,), "uint8"),
        page_bytes: T.int64,
        entries: T.int32,
        capacity: T.int32,
    ) -> None:
        with T.Kernel(T.ceildiv(num_rows, per_block), threads=THREADS) as block:
            T.annotate_min_blocks_per_sm(RESIDENT_BLOCKS)
            lane = T.get_thread_binding() % lanes
            row, slot = T.alloc_var("int32"), T.alloc_var("int32")
            row = block * per_block + T.get_thread_binding() // lanes
            values, rounded = T.alloc_local((HALF,), "float32"), T.alloc_local((HALF,), name_of(rows_dtype))
            words, scale = T.alloc_local((2, 2), "int32"), T.alloc_local((2,), "int32")
            if row < num_rows:
                slot = T.cast(slots[row], "int32")
                if slot >= 0 and slot < capacity:
                    for turn in T.unroll(2):
                        if turn * lanes + lane < halves:
                            pages = Pages(pool, pool_bytes, page_bytes, entries)
                            memory.read_half(shape, pages, slot, turn * lanes + lane, words, scale, turn)
                for turn in T.unroll(2):
                    if turn * lanes + lane < halves:
                        code.decode(shape, words, scale, turn, values)
                        if slot < 0 or slot >= capacity:
                            for i in T.unroll(HALF):
                                values[i] = 0.0
                        memory.round_to(values, HALF, rounded)
                        memory.write(rows, T.cast(row, "int64") * halves + turn * lanes + lane, HALF, rounded)

    return compiled(gather_records, architecture)


def store_records(
    view: Tensor, slots: Tensor, rows: Tensor, record_format: RecordFormat, *, refuse_nan: bool = False
) -> None:
    """As the reference, of bfloat16 or float32 rows; a slot beyond the view stores nothing.

    refuse_nan is refused: it would read back what the rows hold.
    """
    if refuse_nan:
        raise ConfigError("refuse_nan is True; kernels of sm90 read nothing back, so only False is accepted")
    shape = stored_shape("rows", rows, view, slots, record_format)
    if rows.dtype not in ROW_DTYPES:
        raise ConfigError(f"rows have dtype {rows.dtype}; bfloat16 or float32 is required")
    check_device(view=view, slots=slots, rows=rows)
    if 0 in (rows.shape[0], view.numel()):
        return
    rows = aligned_rows(rows, PART)
    kernel = store_kernel(shape, rows.dtype, slots.dtype)
    with torch.cuda.device(view.device):
        kernel(span(rows), slots.reshape(-1).contiguous(), rows.stride(0) // PART, *pages_of(view, shape))


def store_mxfp8(view: Tensor, slots: Tensor, rows: Tensor, *, refuse_nan: bool = False) -> None:
    """`store_records` of MXFP8 records."""
    store_records(view, slots, rows, RecordFormat.MXFP8, refuse_nan=refuse_nan)


def store_fp4_e4m3(view: Tensor, slots: Tensor, rows: Tensor, *, refuse_nan: bool = False) -> None:
    """`store_records` of FP4_MAIN records."""
    store_records(view, slots, rows, RecordFormat.FP4_MAIN, refuse_nan=refuse_nan)


def store_mxfp4_index(view: Tensor, slots: Tensor, rows: Tensor, *, refuse_nan: bool = False) -> None:
    """`store_records` of MXFP4_INDEX records."""
    store_records(view, slots, rows, RecordFormat.MXFP4_INDEX, refuse_nan=refuse_nan)


def gather_records(
    view: Tensor, slots: Tensor, record_format: RecordFormat, dtype: torch.dtype = torch.float32
) -> Tensor:
    """As the reference, in bfloat16 or float32; a slot beyond the view reads zeros."""
    check_view(view, record_format)
    check_integers("slots", slots)
    check_device(view=view, slots=slots)
    shape = record_shape(view, record_format)
    if dtype not in ROW_DTYPES:
        raise ConfigError(f"dtype is {dtype}; bfloat16 or float32 is required")
    rows = torch.empty((*slots.shape, shape.width), dtype=dtype, device=view.device)
    if view.numel() == 0:
        return rows.zero_()
    if slots.numel():
        kernel = gather_kernel(shape, dtype, slots.dtype)
        with torch.cuda.device(view.device):
            kernel(rows.view(-1), slots.reshape(-1).contiguous(), *pages_of(view, shape))
    return rows


def load_records(
    view: Tensor, segments: Tensor, num_rows: int, record_format: RecordFormat, dtype: torch.dtype = torch.float32
) -> Tensor:
    """As the reference, of segments that are right, in bfloat16 or float32."""
    entries = check_view(view, record_format)
    return gather_records(view, segments_to_slots(segments, num_rows, entries), record_format, dtype)


IMPLEMENTATIONS = tuple(
    implementation(function)
    for function in (
        store_records,
        store_mxfp8,
        store_fp4_e4m3,
        store_mxfp4_index,
        gather_records,
        load_records,
    )
)

COMPILE_EXAMPLES = {
    f"{name} {shape.record_format.name}": functools.partial(kernel, shape, torch.bfloat16, torch.int32)
    for shape in (
        RecordShape(RecordFormat.FP4_MAIN, 512, None, 8),
        RecordShape(RecordFormat.MXFP8, 512, None, 16),
        RecordShape(RecordFormat.MXFP4_INDEX, 128, 128, 8),
    )
    for name, kernel in (("store_records", store_kernel), ("gather_records", gather_kernel))
}
"""Kernels at the dimensions of the released model, by name; each takes an architecture."""
