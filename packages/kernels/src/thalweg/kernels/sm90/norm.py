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

from thalweg.interfaces import ConfigError
from thalweg.kernels.native_formats import Mxfp8Rows
from thalweg.kernels.reference.fused_rows import check_rows
from thalweg.kernels.sm90.declared import implementation
from thalweg.kernels.sm90.library import ARCHITECTURE, compiled, tilelang
from thalweg.kernels.sm90.row_casts import empty_mxfp8, store_rounded_mxfp8
from thalweg.kernels.sm90.row_parts import (
    GROUP,
    RowShape,
    check_weight,
    flat_rows,
    row_shape,
    row_sum,
)
from thalweg.kernels.sm90.tensors import check_device, name_of, processors

WIDE, WIDE_WARPS = 2048, 4
"""From so many columns on a row is shared by so many warps; a narrower one is one warp's, which waits for nobody."""
HELD = 128
"""Columns whose next rows the blocks of a multiprocessor wait for, per thread of a block."""


@functools.cache
def norm_kernel(width: int, weight_type: str, casts: bool, blocks: int, architecture: str = ARCHITECTURE) -> Any:
    """The compiled kernel for rows of a width; casts: whether MXFP8 comes out, instead of bfloat16.

    blocks: that run at the same time. They share out the rows, and widen the weights once.
    """
    T = tilelang().language
    shape = _shape(width)
    vector, warps, held = shape.vector, shape.warps, shape.rounds * shape.vector
    sums, store, stride = row_sum(warps), store_rounded_mxfp8(vector), blocks * shape.rows
    num_rows, extent = T.dynamic("n"), T.dynamic("extent", "int64")

    @T.macro
    def load(line: Any, start: Any, place: Any, loaded: Any) -> None:
        """The columns of this thread from a line of memory, in which they begin at `start`."""
        for k in T.unroll(shape.rounds):
            for i in T.vectorized(vector):
                loaded[k * vector + i] = line[start + ((place + k * shape.row_threads) * vector + i)]

    @T.macro
    def widened_and_squared(raw: Any, values: Any) -> Any:
        squares = T.alloc_var("float32")
        squares = 0.0
        for i in T.unroll(held):
            values[i] = T.cast(raw[i], "float32")
            squares = squares + values[i] * values[i]
        return squares

    @T.macro
    def normed_rows(x: Any, weight: Any, row_vectors: Any, eps: Any, out: Any, scales: Any, block: Any) -> None:
        place, row_size = T.get_thread_binding() % shape.row_threads, row_vectors * vector
        raw = T.alloc_local((held,), "bfloat16")
        stored = T.alloc_local((held,), weight_type)
        factors = T.alloc_local((held,), "float32")
        values = T.alloc_local((held,), "float32")
        parts = T.alloc_shared((2, warps), "float32")
        normed = T.alloc_local((vector,), "float32")
        rounded = T.alloc_local((vector,), "bfloat16")
        row, turn = T.alloc_var("int32"), T.alloc_var("int32")
        row = block * shape.rows + T.get_thread_binding() // shape.row_threads
        turn = 0
        if row < num_rows:
            load(x, row * row_size, place, raw)
        load(weight, 0, place, stored)
        for i in T.unroll(held):
            factors[i] = T.cast(stored[i], "float32")
        while row < num_rows:
            squares = widened_and_squared(raw, values)
            if row + stride < num_rows:
                load(x, (row + stride) * row_size, place, raw)
            # Parts of two rows: those of the last one may still be read.
            scale = T.rsqrt(sums(squares, parts, turn) / width + eps)
            turn = 1 - turn
            for k in T.unroll(shape.rounds):
                for i in T.unroll(vector):
                    normed[i] = values[k * vector + i] * scale * factors[k * vector + i]
                for i in T.vectorized(vector):
                    rounded[i] = normed[i]
                if casts:
                    store(rounded, out, scales, row, place + k * shape.row_threads)
                else:
                    for i in T.vectorized(vector):
                        out[row, (place + k * shape.row_threads) * vector + i] = rounded[i]
            row = row + stride

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
            with T.Kernel(T.min(T.ceildiv(num_rows, shape.rows), blocks), threads=shape.threads) as block:
                T.annotate_min_blocks_per_sm(_resident(shape))
                normed_rows(x, weight, row_vectors, eps, codes, scales, block)

        return compiled(norm_quantize, architecture)

    @T.prim_func
    def rms_norm(
        x: T.Tensor((extent,), "bfloat16"),
        weight: T.Tensor((width,), weight_type),
        out: T.Tensor((num_rows, width), "bfloat16"),
        row_vectors: T.int64,
        eps: T.float32,
    ) -> None:
        with T.Kernel(T.min(T.ceildiv(num_rows, shape.rows), blocks), threads=shape.threads) as block:
            T.annotate_min_blocks_per_sm(_resident(shape))
            normed_rows(x, weight, row_vectors, eps, out, None, block)

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
    if x.dim() == 0:
        raise ConfigError("x has shape []; rows [..., k] are expected")
    check_weight("weight", weight, (x.shape[-1],))
    check_device(x=x, weight=weight)
    try:
        return x if x.dim() == 2 else x.view(-1, x.shape[-1])
    except RuntimeError as error:
        raise ConfigError(
            f"x has shape {list(x.shape)} with strides {list(x.stride())}; rows equally far apart are required"
        ) from error


def _shape(width: int) -> RowShape:
    return row_shape("x", width, WIDE_WARPS if width >= WIDE else 1)


def _resident(shape: RowShape) -> int:
    """Blocks of a multiprocessor, each with the weights, a row and the next one in registers."""
    return min(16, max(4, HELD // (shape.rounds * shape.vector)))


def _launch(rows: Tensor, weight: Tensor, eps: float, *results: Tensor) -> None:
    num_rows, width = rows.shape
    shape = _shape(width)
    if num_rows == 0:
        return
    blocks = _resident(shape) * processors(rows.device)
    kernel = norm_kernel(width, name_of(weight.dtype), len(results) == 2, blocks)
    flat = flat_rows("x", rows, shape.vector)
    with torch.cuda.device(rows.device):
        kernel(flat, weight, *results, rows.stride(0) // shape.vector, eps)


IMPLEMENTATIONS = tuple(implementation(function) for function in (rms_norm, norm_quantize))

COMPILE_EXAMPLES: dict[str, Callable[[str], Any]] = {
    "rms_norm": lambda architecture: norm_kernel(5120, "bfloat16", False, 528, architecture),
    "norm_quantize": lambda architecture: norm_kernel(1280, "bfloat16", True, 528, architecture),
}
