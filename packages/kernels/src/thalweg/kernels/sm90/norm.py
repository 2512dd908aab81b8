"""RMSNorm of rows on Hopper, alone or with the cast to MXFP8.

A row is held in registers between the sum of its squares and its use, so it is read once. Its sum is formed in the same
order in every batch.
"""
# Without postponed annotations: those of the kernel are its arguments' types to TileLang.
# mypy: disable-error-code="valid-type, name-defined, untyped-decorator"

import functools
from collections.abc import Callable
from typing import Any

import torch
from torch import Tensor

from thalweg.kernels.native_formats import Mxfp8Rows
from thalweg.kernels.reference.fused_rows import check_rows
from thalweg.kernels.sm90.library import ARCHITECTURE, compiled, tilelang
from thalweg.kernels.sm90.row_parts import (
    GROUP,
    check_device,
    check_weight,
    empty_mxfp8,
    flat_rows,
    implementation,
    kernel_dtype,
    row_shape,
    row_sum,
    store_mxfp8,
)

MOST_WARPS = 4
"""Of a row. Few warps with many columns each fill a device better than many with few."""


@functools.cache
def norm_kernel(width: int, weight_type: str, casts: bool, architecture: str = ARCHITECTURE) -> Any:
    """The compiled kernel for rows of a width; casts: whether MXFP8 comes out, instead of bfloat16."""
    T = tilelang().language
    shape = row_shape("x", width, MOST_WARPS)
    vector, rounds, sums, store = shape.vector, shape.rounds, row_sum(shape.warps), store_mxfp8(shape.vector)
    num_rows, extent = T.dynamic("n"), T.dynamic("extent", "int64")

    @T.macro
    def load(x: Any, weight: Any, start: Any, place: Any, values: Any, factors: Any) -> None:
        raw = T.alloc_local((rounds * vector,), "bfloat16")
        for k in T.unroll(rounds):
            for i in T.vectorized(vector):
                raw[k * vector + i] = x[start + ((place + k * shape.row_threads) * vector + i)]
        for k in T.unroll(rounds):
            for i in T.vectorized(vector):
                factors[k * vector + i] = weight[(place + k * shape.row_threads) * vector + i]
        for k in T.unroll(rounds):
            for i in T.vectorized(vector):
                values[k * vector + i] = raw[k * vector + i]

    @T.macro
    def normed(x: Any, weight: Any, start: Any, place: Any, eps: Any, rounded: Any) -> None:
        """The normed values of this thread, rounded."""
        values = T.alloc_local((rounds * vector,), "float32")
        factors = T.alloc_local((rounds * vector,), weight_type)
        parts = T.alloc_shared((shape.warps,), "float32")
        load(x, weight, start, place, values, factors)
        squares = T.alloc_var("float32")
        squares = 0.0
        for i in T.unroll(rounds * vector):
            squares = squares + values[i] * values[i]
        scale = T.rsqrt(sums(squares, parts) / width + eps)
        for i in T.unroll(rounds * vector):
            values[i] = values[i] * scale * T.cast(factors[i], "float32")
        for k in T.unroll(rounds):
            for i in T.vectorized(vector):
                rounded[k * vector + i] = values[k * vector + i]

    if casts:

        @T.prim_func
        def norm_quantize(
            x: T.Tensor((extent,), "bfloat16"),
            weight: T.Tensor((width,), weight_type),
            codes: T.Tensor((num_rows, width), "float8_e4m3fn"),
            scales: T.Tensor((num_rows, width // GROUP), "uint8"),
            row_vectors: T.int64,
            eps: T.float32,
        ) -> None:
            with T.Kernel(T.ceildiv(num_rows, shape.rows), threads=shape.threads) as block:
                row = block * shape.rows + T.get_thread_binding() // shape.row_threads
                place = T.get_thread_binding() % shape.row_threads
                rounded = T.alloc_local((rounds * vector,), "bfloat16")
                group = T.alloc_local((vector,), "float32")
                if row < num_rows:
                    normed(x, weight, row * row_vectors * vector, place, eps, rounded)
                    for k in T.unroll(rounds):
                        for i in T.vectorized(vector):
                            group[i] = rounded[k * vector + i]
                        store(group, codes, scales, row, place + k * shape.row_threads)

        return compiled(norm_quantize, architecture)

    @T.prim_func
    def rms_norm(
        x: T.Tensor((extent,), "bfloat16"),
        weight: T.Tensor((width,), weight_type),
        out: T.Tensor((num_rows, width), "bfloat16"),
        row_vectors: T.int64,
        eps: T.float32,
    ) -> None:
        with T.Kernel(T.ceildiv(num_rows, shape.rows), threads=shape.threads) as block:
            row = block * shape.rows + T.get_thread_binding() // shape.row_threads
            place = T.get_thread_binding() % shape.row_threads
            rounded = T.alloc_local((rounds * vector,), "bfloat16")
            if row < num_rows:
                normed(x, weight, row * row_vectors * vector, place, eps, rounded)
                for k in T.unroll(rounds):
                    for i in T.vectorized(vector):
                        out[row, (place + k * shape.row_threads) * vector + i] = rounded[k * vector + i]

    return compiled(rms_norm, architecture)


def rms_norm(x: Tensor, weight: Tensor, eps: float) -> Tensor:
    """As the reference, for bfloat16 x [..., K]: rows of a matrix may lie apart; weight is float32 or bfloat16."""
    rows = _rows(x, weight)
    out = torch.empty(rows.shape, dtype=torch.bfloat16, device=x.device)
    _launch(rows, weight, eps, out)
    return out.view(x.shape)


def norm_quantize(x: Tensor, weight: Tensor, eps: float) -> Mxfp8Rows:
    """As the reference."""
    check_rows("x", x, torch.bfloat16, ("n", "K"))
    rows = _rows(x, weight)
    result = empty_mxfp8(rows.shape[0], rows.shape[1], x.device)
    _launch(rows, weight, eps, result.codes.view(torch.float8_e4m3fn), result.scales)
    return result


def _rows(x: Tensor, weight: Tensor) -> Tensor:
    """x [..., K] as [n, K], checked together with the weight."""
    check_rows("x", x, torch.bfloat16, tuple(x.shape))
    check_weight("weight", weight, (x.shape[-1],))
    check_device(x=x, weight=weight)
    return x if x.dim() == 2 else x.view(-1, x.shape[-1])


def _launch(rows: Tensor, weight: Tensor, eps: float, *results: Tensor) -> None:
    num_rows, width = rows.shape
    shape = row_shape("x", width, MOST_WARPS)
    if num_rows == 0:
        return
    kernel = norm_kernel(width, kernel_dtype(weight), len(results) == 2)
    flat = flat_rows("x", rows, shape.vector)
    with torch.cuda.device(rows.device):
        kernel(flat, weight, *results, rows.stride(0) // shape.vector, eps)


IMPLEMENTATIONS = tuple(implementation(function) for function in (rms_norm, norm_quantize))

COMPILE_EXAMPLES: dict[str, Callable[[str], Any]] = {
    "rms_norm": lambda architecture: norm_kernel(5120, "bfloat16", False, architecture),
    "norm_quantize": lambda architecture: norm_kernel(1280, "bfloat16", True, architecture),
}
