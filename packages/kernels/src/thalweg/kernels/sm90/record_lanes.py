"""What a lane reads and writes, on Hopper: its elements of a row, and their bytes and scales in the pages."""
# Without postponed annotations: those of macros are their arguments' types to TileLang.
# mypy: disable-error-code="untyped-decorator"

import functools
import math
from types import SimpleNamespace
from typing import Any, NamedTuple

from thalweg.kernels.sm90.library import tilelang
from thalweg.kernels.sm90.record_shape import HALF, RecordShape


class Pages(NamedTuple):
    """Arguments of a kernel that say where records lie, see `pages_of`."""

    pool: Any
    """The bytes in units."""
    pool_bytes: Any
    page_bytes: Any
    entries: Any


@functools.cache
def lane_macros() -> SimpleNamespace:
    """The macros; each becomes part of the kernel that calls it.

    loaded: [turns, n] of the dtype of rows. words: int32 [turns, 4 or 2], data of a lane as little-endian words. scale:
    int32 [turns], the byte of a lane's group.
    """
    T: Any = tilelang().language

    @T.macro
    def fetch(rows: Any, place: Any, count: int, loaded: Any, turn: Any) -> None:
        """loaded of `count` elements of flat rows, from element `place` times `count` on."""
        vector = 8 if rows.dtype == "bfloat16" else 4
        for piece in T.unroll(count // vector):
            for i in T.vectorized(vector):
                loaded[turn, piece * vector + i] = rows[place * count + piece * vector + i]

    @T.macro
    def write(rows: Any, place: Any, count: int, rounded: Any) -> None:
        """The counterpart of fetch; rounded: [count] in the dtype of rows."""
        vector = 8 if rows.dtype == "bfloat16" else 4
        for piece in T.unroll(count // vector):
            for i in T.vectorized(vector):
                rows[place * count + piece * vector + i] = rounded[piece * vector + i]

    @T.macro
    def round_to(values: Any, count: int, rounded: Any) -> None:
        """rounded of float32 values, four at a time: as many as one conversion takes."""
        for piece in T.unroll(count // 4):
            for i in T.vectorized(4):
                rounded[4 * piece + i] = T.cast(values[4 * piece + i], rounded.dtype)

    @T.macro
    def write_record(shape: RecordShape, pages: Pages, slot: Any, lane: Any, words: Any, scale: Any) -> None:
        """The 16 elements of a lane into the record of a slot; the first lane of a group writes its scale."""
        unit, count = shape.unit, shape.part_bytes // 4
        page, entry, start = T.alloc_var("int64"), T.alloc_var("int32"), T.alloc_var("int64")
        page = T.truncdiv(slot, pages.entries)
        entry = slot - T.cast(page, "int32") * pages.entries
        start = page * T.truncdiv(pages.page_bytes, unit) + (
            entry * (shape.entry_bytes // unit) + lane * (shape.part_bytes // unit)
        )
        for piece in T.unroll(4 * count // unit):
            if unit >= 4:
                for i in T.vectorized(unit // 4):
                    pages.pool[(start + piece) * (unit // 4) + i] = words[0, piece * (unit // 4) + i]
            else:
                pages.pool[start + piece] = T.cast(
                    T.shift_right(words[0, piece * unit // 4], 8 * (piece * unit % 4)), pages.pool.dtype
                )
        if lane % shape.group_lanes == 0:
            place = shape.scale_start + entry * shape.scale_stride + lane // shape.group_lanes
            pages.pool_bytes[page * pages.page_bytes + place] = T.cast(scale[0], "uint8")

    @T.macro
    def read_half(shape: RecordShape, pages: Pages, slot: Any, half: Any, words: Any, scale: Any, turn: Any) -> None:
        """words and scale of elements [8 half, 8 half + 8) of the record of a slot."""
        half_bytes, unit = shape.part_bytes // 2, math.gcd(shape.unit, shape.part_bytes // 2)
        page, entry, start = T.alloc_var("int64"), T.alloc_var("int32"), T.alloc_var("int64")
        page = T.truncdiv(slot, pages.entries)
        entry = slot - T.cast(page, "int32") * pages.entries
        start = page * T.truncdiv(pages.page_bytes, unit) + (
            entry * (shape.entry_bytes // unit) + half * (half_bytes // unit)
        )
        place = shape.scale_start + entry * shape.scale_stride + half // (shape.record_format.group // HALF)
        scale[turn] = T.cast(pages.pool_bytes[page * pages.page_bytes + place], "int32")
        if unit >= 4:
            for piece in T.unroll(half_bytes // unit):
                for i in T.vectorized(unit // 4):
                    words[turn, piece * (unit // 4) + i] = pages.pool[(start + piece) * (unit // 4) + i]
        else:
            for i in T.unroll(half_bytes // 4):
                words[turn, i] = 0
            for piece in T.unroll(half_bytes // unit):
                read = T.bitwise_and(T.cast(pages.pool[start + piece], "int32"), (1 << 8 * unit) - 1)
                words[turn, piece * unit // 4] = T.bitwise_or(
                    words[turn, piece * unit // 4], T.shift_left(read, 8 * (piece * unit % 4))
                )

    return SimpleNamespace(fetch=fetch, write=write, round_to=round_to, write_record=write_record, read_half=read_half)
