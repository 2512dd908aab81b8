"""Rotations of the last columns of rows on Hopper: in place, or on the way to a cast.

Products and sums are rounded one by one, as in the reference: a fused multiply-add would change last bits, and with
them now and then a code.
"""
# Without postponed annotations: those of the kernel are its arguments' types to TileLang.
# mypy: disable-error-code="valid-type, name-defined, untyped-decorator, no-any-return"

import functools
from collections.abc import Callable
from typing import Any

import torch
from torch import Tensor

from thalweg.interfaces import ConfigError
from thalweg.kernels.native_formats import Mxfp8Rows
from thalweg.kernels.reference.fused_rows import check_rotation
from thalweg.kernels.sm90.declared import implementation
from thalweg.kernels.sm90.library import ARCHITECTURE, compiled, tilelang
from thalweg.kernels.sm90.row_casts import PAIRED, empty_mxfp8, store_mxfp4, store_rounded_mxfp8
from thalweg.kernels.sm90.row_parts import (
    GROUP,
    Macro,
    check_contiguous,
)
from thalweg.kernels.sm90.tensors import check_device

VECTOR = PAIRED
THREADS = 256
ROUNDS = 2
"""Vectors of a thread that casts. All are loaded before the first one is used."""
ROW_THREADS = 128
"""Most threads of a row that is rotated in place."""


@functools.cache
def rotated_vector(is_inverse: bool) -> Macro:
    """Macro (raw, first, values, cos, sin, row, quad): eight bfloat16 of raw from `first` on, rotated to float32.

    cos, sin: float32 [n, rope / 2], of which four are used; quad: which four.
    """
    T = tilelang().language

    @T.macro
    def rotated(raw: Any, first: Any, values: Any, cos: Any, sin: Any, row: Any, quad: Any) -> None:
        c = T.alloc_local((VECTOR // 2,), "float32")
        s = T.alloc_local((VECTOR // 2,), "float32")
        for i in T.vectorized(VECTOR // 2):
            c[i] = cos[row, quad * (VECTOR // 2) + i]
        for i in T.vectorized(VECTOR // 2):
            s[i] = sin[row, quad * (VECTOR // 2) + i]
        for i in T.unroll(VECTOR // 2):
            a = T.cast(raw[first + 2 * i], "float32")
            b = T.cast(raw[first + 2 * i + 1], "float32")
            turn = -s[i] if is_inverse else s[i]
            values[2 * i] = T.ieee_sub(T.ieee_mul(a, c[i]), T.ieee_mul(b, turn))
            values[2 * i + 1] = T.ieee_add(T.ieee_mul(a, turn), T.ieee_mul(b, c[i]))

    return rotated


@functools.cache
def rotate_kernel(heads: int, width: int, rope: int, architecture: str = ARCHITECTURE) -> Any:
    """The compiled kernel that rotates rows in place; only the rotated columns are touched."""
    T = tilelang().language
    rotated, num_rows, vectors = rotated_vector(False), T.dynamic("n"), rope // VECTOR
    threads = min(ROW_THREADS, heads * vectors) // vectors * vectors
    rounds = -(-heads * vectors // threads)

    @T.prim_func
    def rotate_rows(
        x: T.Tensor((num_rows, heads, width), "bfloat16"),
        cos: T.Tensor((num_rows, rope // 2), "float32"),
        sin: T.Tensor((num_rows, rope // 2), "float32"),
    ) -> None:
        with T.Kernel(num_rows, threads=threads) as row:
            vector = T.get_thread_binding() % vectors
            raw = T.alloc_local((rounds * VECTOR,), "bfloat16")
            values = T.alloc_local((VECTOR,), "float32")
            for k in T.unroll(rounds):
                head = k * (threads // vectors) + T.get_thread_binding() // vectors
                if head < heads:
                    for i in T.vectorized(VECTOR):
                        raw[k * VECTOR + i] = x[row, head, width - rope + vector * VECTOR + i]
            for k in T.unroll(rounds):
                head = k * (threads // vectors) + T.get_thread_binding() // vectors
                if head < heads:
                    rotated(raw, k * VECTOR, values, cos, sin, row, vector)
                    for i in T.vectorized(VECTOR):
                        x[row, head, width - rope + vector * VECTOR + i] = values[i]

    return compiled(rotate_rows, architecture)


@functools.cache
def rotate_cast_kernel(
    heads: int, width: int, rope: int, is_inverse: bool, is_mxfp4: bool, architecture: str = ARCHITECTURE
) -> Any:
    """The compiled kernel that reads rows, rotates their last columns there or back, and casts them."""
    T = tilelang().language
    rotated, num_rows = rotated_vector(is_inverse), T.dynamic("n")
    store = store_mxfp4() if is_mxfp4 else store_rounded_mxfp8(VECTOR)
    vectors, head_vectors, kept_vectors = heads * width // VECTOR, width // VECTOR, (width - rope) // VECTOR
    columns, code_type = heads * width, "uint8" if is_mxfp4 else "float8_e4m3fn"

    @T.prim_func
    def rotate_cast(
        x: T.Tensor((num_rows, columns), "bfloat16"),
        cos: T.Tensor((num_rows, rope // 2), "float32"),
        sin: T.Tensor((num_rows, rope // 2), "float32"),
        codes: T.Tensor((num_rows, columns // 2 if is_mxfp4 else columns), code_type),
        scales: T.Tensor((num_rows, columns // GROUP), "uint8"),
    ) -> None:
        with T.Kernel(T.ceildiv(num_rows * vectors, THREADS * ROUNDS), threads=THREADS) as block:
            row, place = T.alloc_var("int32"), T.alloc_var("int32")
            raw = T.alloc_local((ROUNDS * VECTOR,), "bfloat16")
            values = T.alloc_local((VECTOR,), "float32")
            turned = T.alloc_local((VECTOR,), "bfloat16")
            for k in T.unroll(ROUNDS):
                row = ((block * ROUNDS + k) * THREADS + T.get_thread_binding()) // vectors
                place = (block * ROUNDS + k) * THREADS + T.get_thread_binding() - row * vectors
                if row < num_rows:
                    for i in T.vectorized(VECTOR):
                        raw[k * VECTOR + i] = x[row, place * VECTOR + i]
            for k in T.unroll(ROUNDS):
                row = ((block * ROUNDS + k) * THREADS + T.get_thread_binding()) // vectors
                place = (block * ROUNDS + k) * THREADS + T.get_thread_binding() - row * vectors
                if row < num_rows and place % head_vectors >= kept_vectors:
                    rotated(raw, k * VECTOR, values, cos, sin, row, place % head_vectors - kept_vectors)
                    for i in T.vectorized(VECTOR):
                        turned[i] = values[i]
                else:
                    for i in T.vectorized(VECTOR):
                        turned[i] = raw[k * VECTOR + i]
                # Lanes of a group are all in a row, or all beyond the last one.
                store(turned, codes, scales, row, place, row < num_rows)

    return compiled(rotate_cast, architecture)


def rotate_rows(x: Tensor, cos: Tensor, sin: Tensor) -> None:
    """As the reference."""
    _check(x, cos, sin)
    if x.numel() and cos.numel():
        with torch.cuda.device(x.device):
            rotate_kernel(x.shape[1], x.shape[2], 2 * cos.shape[1])(x, cos, sin)


def rotate_quantize_mxfp4(x: Tensor, cos: Tensor, sin: Tensor) -> tuple[Tensor, Tensor]:
    """As the reference."""
    _check(x, cos, sin)
    n, heads, width = x.shape
    packed = torch.empty(n, heads, width // 2, dtype=torch.uint8, device=x.device)
    scales = torch.empty(n, heads, width // GROUP, dtype=torch.uint8, device=x.device)
    if x.numel():
        kernel = rotate_cast_kernel(heads, width, 2 * cos.shape[1], False, True)
        with torch.cuda.device(x.device):
            kernel(x.view(n, -1), cos, sin, packed.view(n, -1), scales.view(n, -1))
    return packed, scales


def unrotate_quantize(x: Tensor, cos: Tensor, sin: Tensor) -> Mxfp8Rows:
    """As the reference."""
    _check(x, cos, sin)
    n, heads, width = x.shape
    result = empty_mxfp8(n, heads * width, x.device)
    if x.numel():
        kernel = rotate_cast_kernel(heads, width, 2 * cos.shape[1], True, False)
        with torch.cuda.device(x.device):
            kernel(x.view(n, -1), cos, sin, result.codes.view(torch.float8_e4m3fn), result.scales)
    return result


def _check(x: Tensor, cos: Tensor, sin: Tensor) -> None:
    check_rotation(x, cos, sin)
    check_contiguous(x=x, cos=cos, sin=sin)
    check_device(x=x, cos=cos, sin=sin)
    if 2 * cos.shape[1] % VECTOR:
        raise ConfigError(f"cos has {cos.shape[1]} columns; a multiple of {VECTOR // 2} is required")


IMPLEMENTATIONS = tuple(
    implementation(function) for function in (rotate_rows, rotate_quantize_mxfp4, unrotate_quantize)
)

COMPILE_EXAMPLES: dict[str, Callable[[str], Any]] = {
    "rotate_rows": lambda architecture: rotate_kernel(64, 512, 64, architecture),
    "rotate_quantize_mxfp4": lambda architecture: rotate_cast_kernel(32, 128, 64, False, True, architecture),
    "unrotate_quantize": lambda architecture: rotate_cast_kernel(64, 512, 64, True, False, architecture),
}
