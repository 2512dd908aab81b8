"""The bytes of cached rows on Hopper, as they are: data and scales of any slots, copied out of their pages.

A row is cut into units as large as a thread can move at once, whatever they hold. A thread takes two of them, or more
where a block would not hold a row, and asks for all before it writes one.
"""
# Without postponed annotations: those of the kernels are their arguments' types to TileLang.
# mypy: disable-error-code="valid-type, name-defined, untyped-decorator"

import functools
from dataclasses import dataclass
from typing import Any

import torch
from torch import Tensor

from thalweg.kernels.reference.cache import check_view
from thalweg.kernels.reference.record_format import RecordFormat
from thalweg.kernels.sm90.declared import implementation
from thalweg.kernels.sm90.index_rows import segments_to_slots
from thalweg.kernels.sm90.library import ARCHITECTURE, compiled, tilelang
from thalweg.kernels.sm90.record_shape import unit_dtype
from thalweg.kernels.sm90.tensors import check_device, check_integers, name_of, span, unit_bytes

THREADS = 256
MOST_BYTES = 16
"""What a thread moves at once."""
LEAST_TURNS = 2
"""Units of a thread."""
RESIDENT_BLOCKS = 6
"""Of a processor, at least: registers are given out for so many."""


@dataclass(frozen=True)
class Part:
    """Where the data, or the scales, of an entry lie in its page."""

    size: int
    """Bytes of one entry."""
    start: int
    """Of the first entry, in bytes from the start of the page."""
    stride: int
    """Bytes from entry to entry."""
    unit: int
    """Bytes that are moved at once: everything above is a multiple, and so are all pages."""

    @property
    def units(self) -> int:
        """Of one entry."""
        return self.size // self.unit

    @property
    def elements(self) -> int:
        """Of a unit, in its dtype."""
        return max(self.unit // 4, 1)

    @property
    def dtype(self) -> torch.dtype:
        """Whose elements make up a unit."""
        return unit_dtype(self.unit)


def parts_of(view: Tensor, record_format: RecordFormat) -> tuple[Part, Part]:
    """Data and scales of a well-formed view."""
    entries, record = view.shape[1], view.shape[3]
    width = record_format.width(record)
    data, scales = record_format.data_bytes(width), record_format.scale_bytes(width)
    page = view.stride(0) if view.shape[0] > 1 else 0

    def part(size: int, start: int, stride: int) -> Part:
        return Part(size, start, stride, unit_bytes(MOST_BYTES, size, start, stride, page, view.data_ptr()))

    if record_format.is_block_split:
        return part(data, 0, data), part(scales, entries * data, scales)
    return part(data, 0, record), part(scales, data, record)


@functools.cache
def parts_kernel(data: Part, scales: Part, slots_dtype: torch.dtype, architecture: str = ARCHITECTURE) -> Any:
    """The compiled kernel of `gather_parts`."""
    T = tilelang().language
    num_rows, num_out, num_units = T.dynamic("n"), T.dynamic("num_out", "int64"), T.dynamic("num_units", "int64")
    num_out_scales, num_scale_units = T.dynamic("num_out_scales", "int64"), T.dynamic("num_scale_units", "int64")
    per_row = data.units + scales.units
    turns = max(LEAST_TURNS, -(-per_row // THREADS))
    per_block = THREADS * turns // per_row

    @T.macro
    def place_of(part: Part, slot: Any, entries: Any, page_bytes: Any, unit: Any) -> Any:
        """Which unit of a pool that is."""
        page, entry = T.alloc_var("int64"), T.alloc_var("int32")
        page = T.truncdiv(slot, entries)
        entry = slot - T.cast(page, "int32") * entries
        first = page * T.truncdiv(page_bytes, part.unit) + entry * (part.stride // part.unit)
        return first + (part.start // part.unit + unit)

    @T.macro
    def load(part: Part, pool: Any, place: Any, words: Any, turn: Any) -> None:
        if part.unit >= 4:
            for i in T.vectorized(part.elements):
                words[turn, i] = pool[place * part.elements + i]
        else:
            words[turn, 0] = T.cast(pool[place], "int32")

    @T.macro
    def store(part: Part, out: Any, place: Any, words: Any, turn: Any) -> None:
        if part.unit >= 4:
            for i in T.vectorized(part.elements):
                out[place * part.elements + i] = words[turn, i]
        else:
            out[place] = T.cast(words[turn, 0], out.dtype)

    @T.prim_func
    def gather_parts(
        out: T.Tensor((num_out,), name_of(data.dtype)),
        out_scales: T.Tensor((num_out_scales,), name_of(scales.dtype)),
        slots: T.Tensor((num_rows,), name_of(slots_dtype)),
        pool: T.Tensor((num_units,), name_of(data.dtype)),
        scale_pool: T.Tensor((num_scale_units,), name_of(scales.dtype)),
        page_bytes: T.int64,
        entries: T.int32,
        capacity: T.int32,
    ) -> None:
        with T.Kernel(T.ceildiv(num_rows, per_block), threads=THREADS) as block:
            T.annotate_min_blocks_per_sm(RESIDENT_BLOCKS)
            thread = T.get_thread_binding()
            row, unit, slot = T.alloc_var("int32"), T.alloc_var("int32"), T.alloc_local((turns,), "int32")
            words = T.alloc_local((turns, max(data.elements, scales.elements)), "int32")
            for turn in T.unroll(turns):
                row = block * per_block + (turn * THREADS + thread) // per_row
                slot[turn] = T.cast(slots[T.min(row, num_rows - 1)], "int32")
            for turn in T.unroll(turns):
                unit = (turn * THREADS + thread) % per_row
                for i in T.unroll(max(data.elements, scales.elements)):
                    words[turn, i] = 0
                if slot[turn] >= 0 and slot[turn] < capacity:
                    if unit < data.units:
                        load(data, pool, place_of(data, slot[turn], entries, page_bytes, unit), words, turn)
                    else:
                        place = place_of(scales, slot[turn], entries, page_bytes, unit - data.units)
                        load(scales, scale_pool, place, words, turn)
            for turn in T.unroll(turns):
                unit = (turn * THREADS + thread) % per_row
                row = block * per_block + (turn * THREADS + thread) // per_row
                if turn * THREADS + thread < per_block * per_row and row < num_rows:
                    if unit < data.units:
                        store(data, out, T.cast(row, "int64") * data.units + unit, words, turn)
                    else:
                        place = T.cast(row, "int64") * scales.units + unit - data.units
                        store(scales, out_scales, place, words, turn)

    return compiled(gather_parts, architecture)


def gather_parts(view: Tensor, slots: Tensor, record_format: RecordFormat) -> tuple[Tensor, Tensor]:
    """As the reference; a slot beyond the view reads zeros."""
    check_view(view, record_format)
    check_integers("slots", slots)
    check_device(view=view, slots=slots)
    parts = parts_of(view, record_format)
    made = [torch.empty((*slots.shape, part.size), dtype=torch.uint8, device=view.device) for part in parts]
    if view.numel() == 0:
        return made[0].zero_(), made[1].zero_()
    if slots.numel():
        kernel = parts_kernel(*parts, slots.dtype)
        with torch.cuda.device(view.device):
            kernel(
                *(each.view(-1).view(part.dtype) for each, part in zip(made, parts, strict=True)),
                slots.reshape(-1).contiguous(),
                *(span(view, part.dtype) for part in parts),
                view.stride(0),
                view.shape[1],
                view.shape[0] * view.shape[1],
            )
    return made[0], made[1]


def load_parts(view: Tensor, segments: Tensor, num_rows: int, record_format: RecordFormat) -> tuple[Tensor, Tensor]:
    """As the reference, of segments that are right."""
    return gather_parts(view, segments_to_slots(segments, num_rows, check_view(view, record_format)), record_format)


IMPLEMENTATIONS = tuple(implementation(function) for function in (gather_parts, load_parts))

COMPILE_EXAMPLES = {
    f"gather_parts {name}": functools.partial(parts_kernel, *parts, torch.int32)
    for name, parts in {
        "FP4_MAIN": (Part(256, 0, 288, 16), Part(32, 256, 288, 16)),
        "MXFP8": (Part(512, 0, 528, 16), Part(16, 512, 528, 16)),
        "MXFP4_INDEX": (Part(64, 0, 64, 16), Part(4, 8192, 4, 4)),
    }.items()
}
"""Kernels at the dimensions of the released model, by name; each takes an architecture."""
