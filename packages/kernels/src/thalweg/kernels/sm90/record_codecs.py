"""Cached rows as bytes, on Hopper: what a lane does with its 16 elements of a row.

A row of D elements belongs to `lanes` neighbouring lanes of a warp, the next power of two from D / 16 up. So a lane
holds a whole group of FP4_MAIN, and two neighbours share one of the other formats. Every function of `codecs` becomes
part of the kernel that calls it.
"""
# Without postponed annotations: those of macros are their arguments' types to TileLang.
# mypy: disable-error-code="untyped-decorator"

import functools
import math
from dataclasses import dataclass
from types import SimpleNamespace
from typing import Any

import torch

from thalweg.interfaces import ConfigError
from thalweg.kernels.reference.record_format import RecordFormat
from thalweg.kernels.sm90.library import tilelang

PART = 16
"""Elements of a row that one lane holds."""
WARP = 32
MOST = PART * WARP
"""Elements of the widest row."""


def lanes_of(width: int) -> int:
    """Lanes that share a row of `width` elements; a ConfigError where no warp can hold it."""
    if width % PART or not 0 < width <= MOST:
        raise ConfigError(f"rows have {width} elements; kernels of sm90 need a multiple of {PART} up to {MOST}")
    return 1 << (width // PART - 1).bit_length()


@dataclass(frozen=True)
class RecordShape:
    """Where the bytes of a row lie in its page."""

    record_format: RecordFormat
    width: int
    entries: int | None
    """Of a page, where that matters: in pages that keep their data first."""
    unit: int
    """Bytes that are moved at once: all data begins at a multiple of it."""

    @property
    def data_bytes(self) -> int:
        return self.record_format.data_bytes(self.width)

    @property
    def scale_bytes(self) -> int:
        return self.record_format.scale_bytes(self.width)

    @property
    def entry_bytes(self) -> int:
        """From the data of one entry to that of the next."""
        return self.data_bytes if self.record_format.is_block_split else self.data_bytes + self.scale_bytes

    @property
    def scale_stride(self) -> int:
        """From the scales of one entry to those of the next."""
        return self.scale_bytes if self.record_format.is_block_split else self.entry_bytes

    @property
    def scale_start(self) -> int:
        """From the start of a page to the scales of its first entry."""
        return self.data_bytes * (self.entries or 1)

    @property
    def part_bytes(self) -> int:
        """Data of one lane."""
        return self.data_bytes // self.parts

    @property
    def group_lanes(self) -> int:
        """Lanes that share a scale."""
        return max(self.record_format.group // PART, 1)

    @property
    def parts(self) -> int:
        """Lanes that hold elements."""
        return self.width // PART

    @property
    def lanes(self) -> int:
        return lanes_of(self.width)


def record_shape(view: torch.Tensor, record_format: RecordFormat) -> RecordShape:
    """The shape of the records of a well-formed view. Raises ConfigError for a format or width without kernels."""
    if record_format is RecordFormat.FLOAT64:
        raise ConfigError("record_format is FLOAT64; kernels of sm90 are for FP4_MAIN, MXFP8 and MXFP4_INDEX")
    width = record_format.width(view.shape[3])
    lanes_of(width)
    entries = view.shape[1] if record_format.is_block_split else None
    shape = RecordShape(record_format, width, entries, 1)
    page = view.stride(0) if view.shape[0] > 1 else 0
    unit = math.gcd(shape.part_bytes, shape.entry_bytes, page, view.data_ptr())
    return RecordShape(record_format, width, entries, unit)


def unit_dtype(unit: int) -> torch.dtype:
    """The dtype whose elements make up units of so many bytes."""
    return {1: torch.uint8, 2: torch.int16}.get(unit, torch.int32)


@functools.cache
def codecs() -> SimpleNamespace:
    """The macros. `values`: float32 [16] of this lane; `words`: int32 [4] or [2], its data as little-endian words."""
    T: Any = tilelang().language

    def bits(value: Any) -> Any:
        return T.reinterpret(value, "int32")

    @T.macro
    def load_part(rows: Any, part: Any, values: Any) -> None:
        """Elements [16 part, 16 part + 16) of a flat buffer of bfloat16 or float32."""
        loaded = T.alloc_local((PART,), rows.dtype)
        vector = 8 if rows.dtype == "bfloat16" else 4
        for piece in T.unroll(PART // vector):
            for i in T.vectorized(vector):
                loaded[piece * vector + i] = rows[part * PART + piece * vector + i]
        for i in T.unroll(PART):
            values[i] = T.cast(loaded[i], "float32")

    @T.macro
    def store_part(rows: Any, part: Any, values: Any) -> None:
        """The counterpart of load_part; rounds to the dtype of rows."""
        rounded = T.alloc_local((PART,), rows.dtype)
        vector = 8 if rows.dtype == "bfloat16" else 4
        for piece in T.unroll(PART // vector):
            for i in T.vectorized(vector):
                rounded[piece * vector + i] = T.cast(values[piece * vector + i], rows.dtype)
        for piece in T.unroll(PART // vector):
            for i in T.vectorized(vector):
                rows[part * PART + piece * vector + i] = rounded[piece * vector + i]

    @T.macro
    def e2m1_words(values: Any, words: Any) -> None:
        """Eight codes to a word, the first lowest."""
        codes = T.alloc_local((PART,), "int32")
        for i in T.unroll(PART):
            magnitude = T.min(T.abs(values[i]), 6.0)
            # A number whose last bit is the spacing of e2m1 there: half of 1, 2 or 4. Adding it rounds.
            binade = T.reinterpret(T.bitwise_and(bits(magnitude), 0x7F800000), "float32")
            rounder = T.max(binade * 2.0**22, 2.0**22)
            rounded = T.ieee_sub(T.ieee_add(magnitude, rounder), rounder)
            # e2m1 is float32 with fewer bits: its exponents begin 126 lower, its subnormal becomes one.
            codes[i] = T.bitwise_or(bits(rounded * 2.0**-126), T.bitwise_and(bits(values[i]), T.int32(-(2**31))))
        pairs = T.alloc_local((4,), "uint32")
        for half in T.unroll(2):
            for i in T.unroll(4):
                low = T.reinterpret(codes[8 * half + i], "uint32")
                high = T.reinterpret(codes[8 * half + i + 4], "uint32")
                pair = T.bitwise_or(T.shift_right(low, T.uint32(16)), T.bitwise_and(high, T.uint32(0xFFFF0000)))
                pairs[i] = T.bitwise_or(
                    T.bitwise_and(T.shift_right(pair, T.uint32(6)), T.uint32(0x00070007)),
                    T.bitwise_and(T.shift_right(pair, T.uint32(12)), T.uint32(0x00080008)),
                )
            words[half] = T.reinterpret(
                pairs[0] + pairs[1] * T.uint32(16) + pairs[2] * T.uint32(256) + pairs[3] * T.uint32(4096), "int32"
            )

    @T.macro
    def encode(shape: RecordShape, values: Any, words: Any, scale: Any) -> None:
        """words and scale [1] of a lane's values; every lane of a group gets its scale."""
        # Not a number, or an infinity, in any element shows here, and is rare.
        check = T.alloc_var("float32")
        check = 0.0
        for i in T.unroll(PART):
            check = T.ieee_fmaf(values[i], 0.0, check)
        if bits(check) != 0:
            for i in T.unroll(PART):
                if T.bitwise_and(bits(values[i]), 0x7FFFFFFF) > 0x7F800000:
                    values[i] = 0.0
        top = T.alloc_var("float32")
        top = 0.0
        for i in T.unroll(PART):
            top = T.max(top, T.abs(values[i]))
        if shape.group_lanes == 2:
            top = T.max(top, T.shfl_xor(top, 1))
        factor = T.alloc_var("float32")
        if shape.record_format is RecordFormat.FP4_MAIN:
            rounded = T.alloc_local((1,), "float8_e4m3fn")
            rounded[0] = T.cast(T.min(T.max(top, 6 * 2.0**-9) * T.float32(1 / 6), 448.0), "float8_e4m3fn")
            factor = T.ieee_frcp(T.cast(rounded[0], "float32"))
            scale[0] = T.cast(T.reinterpret(rounded[0], "uint8"), "int32")
        else:
            largest, floor = (448.0, 1e-4) if shape.record_format is RecordFormat.MXFP8 else (6.0, 6 * 2.0**-126)
            # The quotient is rounded up to a power of two by the bits alone: no float32 just above such a multiple of
            # 448 or 6 has a quotient that rounds down to it.
            exact = math.frexp(largest)
            mantissa = round((2 * exact[0] - 1) * 2**23)
            raised = T.alloc_var("int32")
            raised = bits(T.max(top, floor))
            scale[0] = T.shift_right(raised, 23) - (exact[1] - 1)
            if T.bitwise_and(raised, 0x7FFFFF) > mantissa:
                scale[0] = scale[0] + 1
            if raised == 0x7F800000:
                scale[0] = 255
            factor = T.reinterpret(T.shift_left(T.max(254 - scale[0], 0), 23), "float32")
        for i in T.unroll(PART):
            values[i] = values[i] * factor
        if shape.record_format is RecordFormat.MXFP8:
            codes = T.alloc_local((PART,), "float8_e4m3fn")
            for piece in T.unroll(4):
                for i in T.vectorized(4):
                    codes[4 * piece + i] = T.cast(values[4 * piece + i], "float8_e4m3fn")
            packed = T.view(codes, (4,), "int32")
            for i in T.unroll(4):
                words[i] = packed[i]
        else:
            e2m1_words(values, words)

    @T.macro
    def decode(shape: RecordShape, words: Any, scale: Any, values: Any) -> None:
        """The counterpart of encode, of one lane; scale: int32, the byte of its group."""
        if shape.record_format is RecordFormat.MXFP8:
            codes = T.alloc_local((4,), "int32")
            for i in T.unroll(4):
                codes[i] = words[i]
            elements = T.view(codes, (PART,), "float8_e4m3fn")
            for piece in T.unroll(4):
                for i in T.vectorized(4):
                    values[4 * piece + i] = T.cast(elements[4 * piece + i], "float32")
        else:
            for half in T.unroll(2):
                for i in T.unroll(8):
                    word = T.reinterpret(words[half], "uint32")
                    # Raw bits of float32 that are 2^-126 times the value.
                    magnitude = T.bitwise_and(
                        T.shift_left(word, T.uint32(22 - 4 * i))
                        if i <= 5
                        else T.shift_right(word, T.uint32(4 * i - 22)),
                        T.uint32(0x01C00000),
                    )
                    sign = T.bitwise_and(T.shift_left(word, T.uint32(28 - 4 * i)), T.uint32(0x80000000))
                    values[8 * half + i] = T.reinterpret(T.bitwise_or(magnitude, sign), "float32") * 2.0**126
        factor = T.alloc_var("float32")
        if shape.record_format is RecordFormat.FP4_MAIN:
            factor = T.cast(T.reinterpret(T.cast(scale, "uint8"), "float8_e4m3fn"), "float32")
        else:
            # 2^(byte - 127), a subnormal for 0, not a number for 255.
            factor = T.reinterpret(
                T.if_then_else(
                    scale == 255, 0x7FC00000, T.if_then_else(scale == 0, 0x00400000, T.shift_left(scale, 23))
                ),
                "float32",
            )
        for i in T.unroll(PART):
            values[i] = values[i] * factor

    @T.macro
    def write_words(pool: Any, unit: int, start: Any, words: Any, count: int) -> None:
        """Words to a pool of whole units, from unit `start` on."""
        if unit >= 4:
            for piece in T.unroll(4 * count // unit):
                for i in T.vectorized(unit // 4):
                    pool[(start + piece) * (unit // 4) + i] = words[piece * (unit // 4) + i]
        else:
            for piece in T.unroll(4 * count // unit):
                pool[start + piece] = T.cast(
                    T.shift_right(words[piece * unit // 4], 8 * (piece * unit % 4)), pool.dtype
                )

    @T.macro
    def read_words(pool: Any, unit: int, start: Any, words: Any, count: int) -> None:
        """The counterpart of write_words."""
        if unit >= 4:
            for piece in T.unroll(4 * count // unit):
                for i in T.vectorized(unit // 4):
                    words[piece * (unit // 4) + i] = pool[(start + piece) * (unit // 4) + i]
        else:
            for i in T.unroll(count):
                words[i] = 0
            for piece in T.unroll(4 * count // unit):
                bytes_read = T.bitwise_and(T.cast(pool[start + piece], "int32"), (1 << 8 * unit) - 1)
                words[piece * unit // 4] = T.bitwise_or(
                    words[piece * unit // 4], T.shift_left(bytes_read, 8 * (piece * unit % 4))
                )

    @T.macro
    def write_record(
        shape: RecordShape,
        pool: Any,
        pool_bytes: Any,
        page_bytes: Any,
        entries: Any,
        slot: Any,
        lane: Any,
        words: Any,
        scale: Any,
    ) -> None:
        """A lane's part of the record in a slot. pool: in units, pool_bytes: the same bytes."""
        page = T.alloc_var("int64")
        page = T.truncdiv(slot, entries)
        entry = T.alloc_var("int32")
        entry = slot - T.cast(page, "int32") * entries
        start = T.alloc_var("int64")
        start = page * T.truncdiv(page_bytes, shape.unit) + (
            entry * (shape.entry_bytes // shape.unit) + lane * (shape.part_bytes // shape.unit)
        )
        write_words(pool, shape.unit, start, words, shape.part_bytes // 4)
        if lane % shape.group_lanes == 0:
            place = shape.scale_start + entry * shape.scale_stride + lane // shape.group_lanes
            pool_bytes[page * page_bytes + place] = T.cast(scale[0], "uint8")

    @T.macro
    def read_record(
        shape: RecordShape,
        pool: Any,
        pool_bytes: Any,
        page_bytes: Any,
        entries: Any,
        slot: Any,
        lane: Any,
        words: Any,
        scale: Any,
    ) -> None:
        """The counterpart of write_record; every lane of a group gets its scale."""
        page = T.alloc_var("int64")
        page = T.truncdiv(slot, entries)
        entry = T.alloc_var("int32")
        entry = slot - T.cast(page, "int32") * entries
        start = T.alloc_var("int64")
        start = page * T.truncdiv(page_bytes, shape.unit) + (
            entry * (shape.entry_bytes // shape.unit) + lane * (shape.part_bytes // shape.unit)
        )
        place = shape.scale_start + entry * shape.scale_stride + lane // shape.group_lanes
        scale[0] = T.cast(pool_bytes[page * page_bytes + place], "int32")
        read_words(pool, shape.unit, start, words, shape.part_bytes // 4)

    return SimpleNamespace(
        load_part=load_part,
        store_part=store_part,
        encode=encode,
        decode=decode,
        write_record=write_record,
        read_record=read_record,
    )
