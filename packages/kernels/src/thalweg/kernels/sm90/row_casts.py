"""How kernels on rows cast 32 neighbouring columns, those of 32 / vector neighbouring lanes, to MXFP8 and MXFP4.

Every macro (values, codes, scales, row, place, is_stored=True) casts the vector of this thread and stores it. place: of
the vector among those of the row. All lanes of a warp must call it, those with is_stored = False write nothing.
"""
# Without postponed annotations: those of macros are their arguments' types to TileLang.
# mypy: disable-error-code="untyped-decorator, no-any-return"

import functools
from typing import Any

import torch

from thalweg.kernels.native_formats import Mxfp8Rows
from thalweg.kernels.sm90.cuda_source import cuda_source
from thalweg.kernels.sm90.library import tilelang
from thalweg.kernels.sm90.row_parts import GROUP, Macro

PAIRED = 8
"""Columns of a thread for which there is CUDA C++, with half the instructions: it works on pairs of bfloat16."""
SOURCE = "mx_casts.cuh"


@functools.cache
def mxfp8_scale(vector: int) -> Macro:
    """Macro (values, numbers) -> the ue8m0 byte of the group of 32 whose `vector` float32 values this thread holds.

    numbers: takes the values.

    NaN among them become 0, as the format has it, and a group with an infinity has scale 255, which is NaN. The
    smallest power of two that is no less than amax / 448 follows from the bits of amax: 448 = 1.75 * 2^8, so the
    exponent goes up where the mantissa is beyond that of 1.75.
    """
    T = tilelang().language
    steps = {1: 5, 2: 4, 4: 3, 8: 2}[vector]

    @T.macro
    def scale_of(values: Any, numbers: Any) -> Any:
        largest = T.alloc_var("float32")
        largest = 1e-4
        for column in T.unroll(vector):
            numbers[column] = T.if_then_else(T.isnan(values[column]), 0.0, values[column])
            largest = T.max(largest, T.abs(numbers[column]))
        for step in T.unroll(steps):
            largest = T.max(largest, T.shfl_xor(largest, 1 << step))
        exponent = T.alloc_var("int32")
        exponent = T.shift_right(T.reinterpret(largest, "int32") + 0x1FFFFF, 23) - 8
        if largest == T.infinity("float32"):
            exponent = 255
        return exponent

    return scale_of


@functools.cache
def _write_cast(num_codes: int, lanes: int) -> Macro:
    """Macro (cast, exponent, codes, scales, row, place): num_codes of each thread, the scale by one of the lanes."""
    T = tilelang().language

    @T.macro
    def write(cast: Any, exponent: Any, codes: Any, scales: Any, row: Any, place: Any) -> None:
        for i in T.vectorized(num_codes):
            codes[row, place * num_codes + i] = cast[i]
        if place % lanes == 0:
            scales[row, place // lanes] = T.cast(exponent, "uint8")

    return write


@functools.cache
def store_mxfp8(vector: int) -> Macro:
    """The macro for values float32 [vector], codes e4m3 [n, K] and scales uint8 [n, K / 32]."""
    T = tilelang().language
    scale_of, write = mxfp8_scale(vector), _write_cast(vector, GROUP // vector)

    @T.macro
    def store(values: Any, codes: Any, scales: Any, row: Any, place: Any, is_stored: Any = True) -> None:
        numbers = T.alloc_local((vector,), "float32")
        exponent = scale_of(values, numbers)
        factor = T.alloc_var("float32")
        factor = T.reinterpret(T.shift_left(T.max(254 - exponent, 0), 23), "float32")
        cast = T.alloc_local((vector,), "float8_e4m3fn")
        for i in T.vectorized(vector):
            cast[i] = numbers[i] * factor
        if is_stored:
            write(cast, exponent, codes, scales, row, place)

    return store


@functools.cache
def store_rounded_mxfp8(vector: int) -> Macro:
    """The macro for values bfloat16 [vector], codes e4m3 [n, K] and scales uint8 [n, K / 32]."""
    T = tilelang().language
    store, write = store_mxfp8(vector), _write_cast(vector, GROUP // vector)

    @T.macro
    def store_widened(values: Any, codes: Any, scales: Any, row: Any, place: Any, is_stored: Any = True) -> None:
        widened = T.alloc_local((vector,), "float32")
        for i in T.vectorized(vector):
            widened[i] = values[i]
        store(widened, codes, scales, row, place, is_stored)

    @T.macro
    def store_pairs(values: Any, codes: Any, scales: Any, row: Any, place: Any, is_stored: Any = True) -> None:
        T.import_source(cuda_source(SOURCE))
        cast = T.alloc_local((vector,), "float8_e4m3fn")
        exponent = T.alloc_var("int32")
        exponent = T.call_extern("int32", "mxfp8_cast", T.address_of(values[0]), T.address_of(cast[0]))
        if is_stored:
            write(cast, exponent, codes, scales, row, place)

    return store_pairs if vector == PAIRED else store_widened


@functools.cache
def store_mxfp4() -> Macro:
    """The macro for values bfloat16 [8], packed e2m1 codes uint8 [n, K / 2] and scales uint8 [n, K / 32]."""
    T = tilelang().language
    num_bytes = PAIRED // 2
    write = _write_cast(num_bytes, GROUP // PAIRED)

    @T.macro
    def store(values: Any, codes: Any, scales: Any, row: Any, place: Any, is_stored: Any = True) -> None:
        T.import_source(cuda_source(SOURCE))
        packed = T.alloc_local((num_bytes,), "uint8")
        exponent = T.alloc_var("int32")
        exponent = T.call_extern("int32", "mxfp4_cast", T.address_of(values[0]), T.address_of(packed[0]))
        if is_stored:
            write(packed, exponent, codes, scales, row, place)

    return store


def empty_mxfp8(num_rows: int, width: int, device: torch.device) -> Mxfp8Rows:
    """Room for rows of a width."""
    codes = torch.empty(num_rows, width, dtype=torch.uint8, device=device)
    return Mxfp8Rows(codes, torch.empty(num_rows, width // GROUP, dtype=torch.uint8, device=device))
