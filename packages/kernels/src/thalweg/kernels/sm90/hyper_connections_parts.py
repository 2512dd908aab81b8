"""What kernels on the trunk share: a thread's columns of all streams, their weighted sum, and the norm of such a row.

A thread holds `vector` neighbouring columns of every stream at a time, so that each tensor passes the memory once.
"""
# Without postponed annotations: those of macros are their arguments' types to TileLang.
# mypy: disable-error-code="untyped-decorator, no-any-return"

import functools
from typing import Any

from thalweg.kernels.sm90.library import tilelang
from thalweg.kernels.sm90.row_casts import store_rounded_mxfp8
from thalweg.kernels.sm90.row_parts import Macro, RowShape, row_sum


@functools.cache
def load_streams(streams: int, vector: int) -> Macro:
    """Macro (trunk, row, column, held): `vector` columns from `column` on, of all streams of trunk [n, m, h].

    held: bfloat16 [streams * vector], stream by stream.
    """
    T = tilelang().language

    @T.macro
    def load(trunk: Any, row: Any, column: Any, held: Any) -> None:
        for j in T.unroll(streams):
            for i in T.vectorized(vector):
                held[j * vector + i] = trunk[row, j, column + i]

    return load


@functools.cache
def weighted_streams(streams: int, vector: int) -> Macro:
    """Macro (held, weights, row, total): streams held by a thread, added up in their order.

    held: bfloat16 [streams * vector]; weights: float32 [n, m]; total: local float32 [vector].
    """
    T = tilelang().language

    @T.macro
    def add_up(held: Any, weights: Any, row: Any, total: Any) -> None:
        for i in T.unroll(vector):
            total[i] = weights[row, 0] * T.cast(held[i], "float32")
        for j in T.unroll(streams - 1):
            for i in T.unroll(vector):
                total[i] = total[i] + weights[row, j + 1] * T.cast(held[(j + 1) * vector + i], "float32")

    return add_up


@functools.cache
def norm_and_store(shape: RowShape, weight_type: str) -> Macro:
    """Macro (mixed, weight, eps, rows, codes, scales, row, place): RMSNorm of a row, stored as it is and in MXFP8.

    mixed: bfloat16 [rounds * vector], this thread's columns, vector by vector.
    """
    T = tilelang().language
    vector, rounds, sums, store = shape.vector, shape.rounds, row_sum(shape.warps), store_rounded_mxfp8(shape.vector)

    @T.macro
    def finish(mixed: Any, weight: Any, eps: Any, rows: Any, codes: Any, scales: Any, row: Any, place: Any) -> None:
        factors = T.alloc_local((rounds * vector,), weight_type)
        values = T.alloc_local((vector,), "float32")
        rounded = T.alloc_local((vector,), "bfloat16")
        parts = T.alloc_shared((1, shape.warps), "float32")
        squares = T.alloc_var("float32")
        squares = 0.0
        for k in T.unroll(rounds):
            for i in T.vectorized(vector):
                factors[k * vector + i] = weight[(place + k * shape.row_threads) * vector + i]
        for i in T.unroll(rounds * vector):
            squares = squares + T.cast(mixed[i], "float32") * T.cast(mixed[i], "float32")
        scale = T.rsqrt(sums(squares, parts, 0) / shape.width + eps)
        for k in T.unroll(rounds):
            for i in T.unroll(vector):
                values[i] = (
                    T.cast(mixed[k * vector + i], "float32") * scale * T.cast(factors[k * vector + i], "float32")
                )
            for i in T.vectorized(vector):
                rounded[i] = values[i]
            for i in T.vectorized(vector):
                rows[row, (place + k * shape.row_threads) * vector + i] = rounded[i]
            store(rounded, codes, scales, row, place + k * shape.row_threads)

    return finish
