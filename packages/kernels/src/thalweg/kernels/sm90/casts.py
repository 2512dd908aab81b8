"""The cast of bfloat16 rows to MXFP8 on Hopper."""
# Without postponed annotations: those of the kernel are its arguments' types to TileLang.
# mypy: disable-error-code="valid-type, name-defined, untyped-decorator"

import functools
from collections.abc import Callable
from typing import Any

import torch
from torch import Tensor

from thalweg.interfaces import ConfigError
from thalweg.kernels.native_formats import Mxfp8Rows
from thalweg.kernels.reference.fused_rows import check_rows
from thalweg.kernels.sm90.declared import implementation
from thalweg.kernels.sm90.library import ARCHITECTURE, compiled, tilelang
from thalweg.kernels.sm90.row_casts import PAIRED, empty_mxfp8, store_rounded_mxfp8
from thalweg.kernels.sm90.row_parts import GROUP, flat_rows
from thalweg.kernels.sm90.tensors import check_device

VECTOR = PAIRED
THREADS = 256
ROUNDS = 4
"""Vectors of a thread. All are loaded before the first one is used."""


@functools.cache
def cast_kernel(width: int, architecture: str = ARCHITECTURE) -> Any:
    """The compiled kernel for rows of a width: vectors of all rows in one line, whatever row they belong to."""
    T = tilelang().language
    store, vectors = store_rounded_mxfp8(VECTOR), width // VECTOR
    num_rows, extent = T.dynamic("n"), T.dynamic("extent", "int64")

    @T.prim_func
    def quantize_mxfp8(
        x: T.Tensor((extent,), "bfloat16"),
        codes: T.Tensor((num_rows, width), "float8_e4m3fn"),
        scales: T.Tensor((num_rows, width // GROUP), "uint8"),
        row_vectors: T.int64,
    ) -> None:
        with T.Kernel(T.ceildiv(num_rows * vectors, THREADS * ROUNDS), threads=THREADS) as block:
            first = block * (THREADS * ROUNDS) + T.get_thread_binding()
            raw = T.alloc_local((ROUNDS * VECTOR,), "bfloat16")
            values = T.alloc_local((VECTOR,), "bfloat16")
            row, place = T.alloc_var("int32"), T.alloc_var("int32")
            for k in T.unroll(ROUNDS):
                if first + k * THREADS < num_rows * vectors:
                    row = (first + k * THREADS) // vectors
                    place = first + k * THREADS - row * vectors
                    for i in T.vectorized(VECTOR):
                        raw[k * VECTOR + i] = x[(row * row_vectors + place) * VECTOR + i]
            for k in T.unroll(ROUNDS):
                row = (first + k * THREADS) // vectors
                place = first + k * THREADS - row * vectors
                for i in T.vectorized(VECTOR):
                    values[i] = raw[k * VECTOR + i]
                # Lanes of a group are all in a row, or all beyond the last one.
                store(values, codes, scales, row, place, row < num_rows)

    return compiled(quantize_mxfp8, architecture)


def quantize_mxfp8(x: Tensor, refuse_nan: bool = False) -> Mxfp8Rows:
    """As the reference, for bfloat16 x [..., D]; rows of a matrix may lie apart.

    To refuse NaN would be to read back: ConfigError.
    """
    if refuse_nan:
        raise ConfigError("refuse_nan is True; on a device NaN is encoded as 0, finding it would block the host")
    check_rows("x", x, torch.bfloat16, tuple(x.shape))
    check_device(x=x)
    rows = x if x.dim() == 2 else x.view(-1, x.shape[-1])
    num_rows, width = rows.shape
    if width == 0 or width % GROUP:
        raise ConfigError(f"x has shape {list(x.shape)}; the last axis must be a positive multiple of {GROUP}")
    result = empty_mxfp8(num_rows, width, x.device)
    if num_rows:
        flat = flat_rows("x", rows, VECTOR)
        with torch.cuda.device(x.device):
            codes = result.codes.view(torch.float8_e4m3fn)
            cast_kernel(width)(flat, codes, result.scales, rows.stride(0) // VECTOR)
    return Mxfp8Rows(result.codes.view(x.shape), result.scales.view(*x.shape[:-1], width // GROUP))


IMPLEMENTATIONS = (implementation(quantize_mxfp8),)

COMPILE_EXAMPLES: dict[str, Callable[[str], Any]] = {
    "quantize_mxfp8": lambda architecture: cast_kernel(8192, architecture)
}
