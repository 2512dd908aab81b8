"""Elements of cached rows as bytes, on Hopper: what a lane encodes and decodes, in its registers."""
# Without postponed annotations: those of macros are their arguments' types to TileLang.
# mypy: disable-error-code="untyped-decorator"

import functools
import math
from types import SimpleNamespace
from typing import Any

from thalweg.kernels.reference.record_format import RecordFormat
from thalweg.kernels.sm90.library import tilelang
from thalweg.kernels.sm90.record_shape import HALF, PART, RecordShape


@functools.cache
def codecs() -> SimpleNamespace:
    """The macros. values: float32 [16] of a lane, or [8]; words and scale: of `record_lanes`."""
    T: Any = tilelang().language

    def bits(value: Any) -> Any:
        return T.reinterpret(value, "int32")

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
            words[0, half] = T.reinterpret(
                pairs[0] + pairs[1] * T.uint32(16) + pairs[2] * T.uint32(256) + pairs[3] * T.uint32(4096), "int32"
            )

    @T.macro
    def encode(shape: RecordShape, values: Any, words: Any, scale: Any) -> None:
        """words [0, :] and scale [0] of a lane's 16 values, which change; all lanes of a group get its scale."""
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
                words[0, i] = packed[i]
        else:
            e2m1_words(values, words)

    @T.macro
    def decode(shape: RecordShape, words: Any, scale: Any, turn: Any, values: Any) -> None:
        """values of 8 elements from words [turn, :] and scale [turn], int32: the byte of their group."""
        if shape.record_format is RecordFormat.MXFP8:
            codes = T.alloc_local((2,), "int32")
            for i in T.unroll(2):
                codes[i] = words[turn, i]
            elements = T.view(codes, (HALF,), "float8_e4m3fn")
            for piece in T.unroll(2):
                for i in T.vectorized(4):
                    values[4 * piece + i] = T.cast(elements[4 * piece + i], "float32")
        else:
            for i in T.unroll(HALF):
                word = T.reinterpret(words[turn, 0], "uint32")
                # Raw bits of float32 that are 2^-126 times the value.
                magnitude = T.bitwise_and(
                    T.shift_left(word, T.uint32(22 - 4 * i)) if i <= 5 else T.shift_right(word, T.uint32(4 * i - 22)),
                    T.uint32(0x01C00000),
                )
                sign = T.bitwise_and(T.shift_left(word, T.uint32(28 - 4 * i)), T.uint32(0x80000000))
                values[i] = T.reinterpret(T.bitwise_or(magnitude, sign), "float32") * 2.0**126
        factor = T.alloc_var("float32")
        if shape.record_format is RecordFormat.FP4_MAIN:
            factor = T.cast(T.reinterpret(T.cast(scale[turn], "uint8"), "float8_e4m3fn"), "float32")
        else:
            # 2^(byte - 127), a subnormal for 0, not a number for 255.
            factor = T.reinterpret(
                T.if_then_else(
                    scale[turn] == 255,
                    0x7FC00000,
                    T.if_then_else(scale[turn] == 0, 0x00400000, T.shift_left(scale[turn], 23)),
                ),
                "float32",
            )
        for i in T.unroll(HALF):
            values[i] = values[i] * factor

    return SimpleNamespace(encode=encode, decode=decode)
