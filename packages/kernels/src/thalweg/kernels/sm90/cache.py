"""Records of the cache on Hopper: encode rows into pages, decode them back, or move their bytes, by flat slot.

Lanes of a warp share a row (see `record_codecs`), and a block takes as many rows as its lanes can hold. Slots that
do not exist store nothing and read zeros, since nothing is read back to refuse them.
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
from thalweg.kernels.registry import Implementation
from thalweg.kernels.sm90.index_rows import segments_to_slots
from thalweg.kernels.sm90.library import ARCHITECTURE, compiled, tilelang
from thalweg.kernels.sm90.record_codecs import PART, RecordShape, codecs, record_shape, unit_dtype
from thalweg.kernels.sm90.tensors import aligned_rows, check_device, check_integers, name_of, span

THREADS = 256
ROW_DTYPES = (torch.bfloat16, torch.float32)


@functools.cache
def store_kernel(
    shape: RecordShape, rows_dtype: torch.dtype, slots_dtype: torch.dtype, architecture: str = ARCHITECTURE
) -> Any:
    """The compiled kernel that encodes rows into records."""
    T, code = tilelang().language, codecs()
    num_elements, num_rows = T.dynamic("num_elements", "int64"), T.dynamic("n")
    num_units, num_bytes = T.dynamic("num_units", "int64"), T.dynamic("num_bytes", "int64")
    lanes, per_block, unit = shape.lanes, THREADS // shape.lanes, shape.unit

    @T.prim_func
    def store_records(
        rows: T.Tensor((num_elements,), name_of(rows_dtype)),
        slots: T.Tensor((num_rows,), name_of(slots_dtype)),
        pool: T.Tensor((num_units,), name_of(unit_dtype(unit))),
        pool_bytes: T.Tensor((num_bytes,), "uint8"),
        row_parts: T.int32,
        page_bytes: T.int64,
        entries: T.int32,
        capacity: T.int32,
    ) -> None:
        with T.Kernel(T.ceildiv(num_rows, per_block), threads=THREADS) as block:
            lane = T.get_thread_binding() % lanes
            row = T.alloc_var("int32")
            row = block * per_block + T.get_thread_binding() // lanes
            part = T.alloc_var("int64")
            part = T.cast(T.min(row, num_rows - 1), "int64") * row_parts + T.min(lane, shape.parts - 1)
            values, words, scale = (
                T.alloc_local((PART,), "float32"),
                T.alloc_local((4,), "int32"),
                T.alloc_local((1,), "int32"),
            )
            code.load_part(rows, part, values)
            slot = T.alloc_var("int32")
            slot = -1
            if row < num_rows and lane < shape.parts:
                slot = T.cast(slots[row], "int32")
            code.encode(shape, values, words, scale)
            if slot >= 0 and slot < capacity:
                code.write_record(shape, pool, pool_bytes, page_bytes, entries, slot, lane, words, scale)

    return compiled(store_records, architecture)


@functools.cache
def gather_kernel(
    shape: RecordShape, rows_dtype: torch.dtype, slots_dtype: torch.dtype, architecture: str = ARCHITECTURE
) -> Any:
    """The compiled kernel that decodes records into rows."""
    T, code = tilelang().language, codecs()
    num_elements, num_rows = T.dynamic("num_elements", "int64"), T.dynamic("n")
    num_units, num_bytes = T.dynamic("num_units", "int64"), T.dynamic("num_bytes", "int64")
    lanes, per_block, unit = shape.lanes, THREADS // shape.lanes, shape.unit

    @T.prim_func
    def gather_records(
        rows: T.Tensor((num_elements,), name_of(rows_dtype)),
        slots: T.Tensor((num_rows,), name_of(slots_dtype)),
        pool: T.Tensor((num_units,), name_of(unit_dtype(unit))),
        pool_bytes: T.Tensor((num_bytes,), "uint8"),
        page_bytes: T.int64,
        entries: T.int32,
        capacity: T.int32,
    ) -> None:
        with T.Kernel(T.ceildiv(num_rows, per_block), threads=THREADS) as block:
            lane = T.get_thread_binding() % lanes
            row = T.alloc_var("int32")
            row = block * per_block + T.get_thread_binding() // lanes
            values, words, scale = (
                T.alloc_local((PART,), "float32"),
                T.alloc_local((4,), "int32"),
                T.alloc_local((1,), "int32"),
            )
            if row < num_rows and lane < shape.parts:
                slot = T.alloc_var("int32")
                slot = T.cast(slots[row], "int32")
                if slot >= 0 and slot < capacity:
                    code.read_record(shape, pool, pool_bytes, page_bytes, entries, slot, lane, words, scale)
                    code.decode(shape, words, scale[0], values)
                else:
                    for i in T.unroll(PART):
                        values[i] = 0.0
                code.store_part(rows, T.cast(row, "int64") * shape.parts + lane, values)

    return compiled(gather_records, architecture)


@functools.cache
def parts_kernel(shape: RecordShape, slots_dtype: torch.dtype, architecture: str = ARCHITECTURE) -> Any:
    """The compiled kernel that copies the bytes of records."""
    T, code = tilelang().language, codecs()
    num_rows, num_words, num_scales = T.dynamic("n"), T.dynamic("num_words", "int64"), T.dynamic("num_scales", "int64")
    num_units, num_bytes = T.dynamic("num_units", "int64"), T.dynamic("num_bytes", "int64")
    lanes, per_block, unit = shape.lanes, THREADS // shape.lanes, shape.unit
    part_words = shape.part_bytes // 4

    @T.prim_func
    def gather_parts(
        data: T.Tensor((num_words,), "int32"),
        scales: T.Tensor((num_scales,), "uint8"),
        slots: T.Tensor((num_rows,), name_of(slots_dtype)),
        pool: T.Tensor((num_units,), name_of(unit_dtype(unit))),
        pool_bytes: T.Tensor((num_bytes,), "uint8"),
        page_bytes: T.int64,
        entries: T.int32,
        capacity: T.int32,
    ) -> None:
        with T.Kernel(T.ceildiv(num_rows, per_block), threads=THREADS) as block:
            lane = T.get_thread_binding() % lanes
            row = T.alloc_var("int32")
            row = block * per_block + T.get_thread_binding() // lanes
            words, scale = T.alloc_local((4,), "int32"), T.alloc_local((1,), "int32")
            if row < num_rows and lane < shape.parts:
                slot = T.alloc_var("int32")
                slot = T.cast(slots[row], "int32")
                for i in T.unroll(4):
                    words[i] = 0
                scale[0] = 0
                if slot >= 0 and slot < capacity:
                    code.read_record(shape, pool, pool_bytes, page_bytes, entries, slot, lane, words, scale)
                place = T.alloc_var("int64")
                place = T.cast(row, "int64") * shape.parts + lane
                for i in T.vectorized(part_words):
                    data[place * part_words + i] = words[i]
                if lane % shape.group_lanes == 0:
                    scales[T.cast(row, "int64") * shape.scale_bytes + lane // shape.group_lanes] = T.cast(
                        scale[0], "uint8"
                    )

    return compiled(gather_parts, architecture)


def store_records(
    view: Tensor, slots: Tensor, rows: Tensor, record_format: RecordFormat, *, refuse_nan: bool = False
) -> None:
    """As the reference, of bfloat16 or float32 rows; a slot beyond the view stores nothing.

    refuse_nan is refused: it would read back what the rows hold.
    """
    if refuse_nan:
        raise ConfigError("refuse_nan is True; kernels of sm90 read nothing back, so only False is accepted")
    check_view(view, record_format)
    shape = record_shape(view, record_format)
    check_integers("slots", slots)
    if rows.dim() != 2 or rows.shape[1] != shape.width or slots.numel() != rows.shape[0]:
        raise ConfigError(
            f"rows are {tuple(rows.shape)} for {slots.numel()} slots; records of {view.shape[3]} bytes need "
            f"[{slots.numel()}, {shape.width}]"
        )
    if rows.dtype not in ROW_DTYPES:
        raise ConfigError(f"rows have dtype {rows.dtype}; bfloat16 or float32 is required")
    check_device(view=view, slots=slots, rows=rows)
    if 0 in (rows.shape[0], view.numel()):
        return
    rows = aligned_rows(rows, PART)
    kernel = store_kernel(shape, rows.dtype, slots.dtype)
    with torch.cuda.device(view.device):
        kernel(
            span(rows), slots.reshape(-1).contiguous(), *pools_of(view, shape), rows.stride(0) // PART, *pages_of(view)
        )


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
    shape = _checked(view, slots, record_format)
    if dtype not in ROW_DTYPES:
        raise ConfigError(f"dtype is {dtype}; bfloat16 or float32 is required")
    rows = torch.empty((*slots.shape, shape.width), dtype=dtype, device=view.device)
    if view.numel() == 0:
        return rows.zero_()
    if slots.numel():
        kernel = gather_kernel(shape, dtype, slots.dtype)
        with torch.cuda.device(view.device):
            kernel(rows.view(-1), slots.reshape(-1).contiguous(), *pools_of(view, shape), *pages_of(view))
    return rows


def gather_parts(view: Tensor, slots: Tensor, record_format: RecordFormat) -> tuple[Tensor, Tensor]:
    """As the reference; a slot beyond the view reads zeros."""
    shape = _checked(view, slots, record_format)
    data = torch.empty((*slots.shape, shape.data_bytes), dtype=torch.uint8, device=view.device)
    scales = torch.empty((*slots.shape, shape.scale_bytes), dtype=torch.uint8, device=view.device)
    if view.numel() == 0:
        return data.zero_(), scales.zero_()
    if slots.numel():
        kernel = parts_kernel(shape, slots.dtype)
        with torch.cuda.device(view.device):
            flat = (data.view(-1).view(torch.int32), scales.view(-1))
            kernel(*flat, slots.reshape(-1).contiguous(), *pools_of(view, shape), *pages_of(view))
    return data, scales


def load_records(
    view: Tensor, segments: Tensor, num_rows: int, record_format: RecordFormat, dtype: torch.dtype = torch.float32
) -> Tensor:
    """As the reference, of segments that are right, in bfloat16 or float32."""
    return gather_records(view, segments_to_slots(segments, num_rows, view.shape[1]), record_format, dtype)


def load_parts(view: Tensor, segments: Tensor, num_rows: int, record_format: RecordFormat) -> tuple[Tensor, Tensor]:
    """As the reference, of segments that are right."""
    return gather_parts(view, segments_to_slots(segments, num_rows, view.shape[1]), record_format)


def _checked(view: Tensor, slots: Tensor, record_format: RecordFormat) -> RecordShape:
    check_view(view, record_format)
    check_integers("slots", slots)
    check_device(view=view, slots=slots)
    return record_shape(view, record_format)


def pools_of(view: Tensor, shape: RecordShape) -> tuple[Tensor, Tensor]:
    """The bytes of a view in units and one by one."""
    return span(view, unit_dtype(shape.unit)), span(view)


def pages_of(view: Tensor) -> tuple[int, int, int]:
    """Bytes from page to page, entries of a page, entries of all pages."""
    return view.stride(0), view.shape[1], view.shape[0] * view.shape[1]


IMPLEMENTATIONS = tuple(
    Implementation(
        op=function.__name__,
        backend="sm90",
        provider="tilelang",
        function=function,
        deterministic=True,
        batch_invariant=True,
        graph_safe=True,
    )
    for function in (
        store_records,
        store_mxfp8,
        store_fp4_e4m3,
        store_mxfp4_index,
        gather_records,
        gather_parts,
        load_records,
        load_parts,
    )
)

COMPILE_EXAMPLES = {
    f"{name} {shape.record_format.name}": functools.partial(kernel, shape, *dtypes)
    for shape in (
        RecordShape(RecordFormat.FP4_MAIN, 512, None, 8),
        RecordShape(RecordFormat.MXFP8, 512, None, 16),
        RecordShape(RecordFormat.MXFP4_INDEX, 128, 128, 8),
    )
    for name, kernel, dtypes in (
        ("store_records", store_kernel, (torch.bfloat16, torch.int32)),
        ("gather_records", gather_kernel, (torch.bfloat16, torch.int32)),
        ("gather_parts", parts_kernel, (torch.int32,)),
    )
}
"""Kernels at the dimensions of the released model, by name; each takes an architecture."""
