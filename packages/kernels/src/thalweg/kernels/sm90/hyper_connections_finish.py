"""The second half of hyper-connection coefficients on Hopper: adding up partial sums, gates, and Sinkhorn divisions."""
# Without postponed annotations: those of the kernel are its arguments' types to TileLang.
# mypy: disable-error-code="valid-type, name-defined, untyped-decorator, no-any-return"

import functools
from typing import Any

from thalweg.kernels.sm90.library import ARCHITECTURE, compiled, tilelang
from thalweg.kernels.sm90.row_parts import WARP, Macro

SLOTS = 32
"""Columns of a partial sum: the mixes, then the sum of squares, then nothing."""
MOST_WARPS = 8
"""Of a block. They share its rows, and the quarters of their sums."""


@functools.cache
def sinkhorn(streams: int) -> Macro:
    """Macro (comb, eps, iterations): local float32 [streams * streams] of exponentials, normalised in place.

    After the first row division a matrix is E[j, k] r[j] c[k]. Dividing row j by its sum plus eps makes 1 / r[j] the
    sum of E[j, k] c[k] plus eps / r[j], and columns likewise: only the denominators change from step to step.
    """
    T = tilelang().language

    @T.macro
    def divide(comb: Any, factors: Any, results: Any, denominators: Any, eps: Any, line: Any, step: Any) -> None:
        """Lines begin `line` apart, and have elements `step` apart."""
        for j in T.unroll(streams):
            denominators[j] = denominators[j] * eps
            for k in T.unroll(streams):
                denominators[j] = denominators[j] + comb[j * line + k * step] * factors[k]
            results[j] = T.fast_rcp(denominators[j])

    @T.macro
    def normalise(comb: Any, eps: Any, iterations: Any) -> None:
        row_factors = T.alloc_local((streams,), "float32")
        column_factors = T.alloc_local((streams,), "float32")
        row_denominators = T.alloc_local((streams,), "float32")
        column_denominators = T.alloc_local((streams,), "float32")
        total = T.alloc_var("float32")
        for j in T.unroll(streams):
            total = comb[j * streams]
            for k in T.unroll(streams - 1):
                total = total + comb[j * streams + k + 1]
            for k in T.unroll(streams):
                comb[j * streams + k] = comb[j * streams + k] / total + eps
            row_factors[j] = 1.0
            row_denominators[j] = 1.0
            column_denominators[j] = 1.0
        divide(comb, row_factors, column_factors, column_denominators, eps, 1, streams)
        for _ in T.serial(iterations - 1):
            divide(comb, column_factors, row_factors, row_denominators, eps, streams, 1)
            divide(comb, row_factors, column_factors, column_denominators, eps, 1, streams)
        for j in T.unroll(streams):
            for k in T.unroll(streams):
                comb[j * streams + k] = comb[j * streams + k] * row_factors[j] * column_factors[k]

    return normalise


@functools.cache
def finish_kernel(
    streams: int, width: int, quarters: int, fans: int, pieces: int, rows: int, architecture: str = ARCHITECTURE
) -> Any:
    """The compiled kernel that adds up partial sums of rows, and makes coefficients of the result.

    A row's sum has `quarters` of so many `fans` each, of so many `pieces`, which are added in this order; rows: of a
    block, at least 2 and a power of two.
    """
    T = tilelang().language
    mixes, normalised, num_rows = (2 + streams) * streams, sinkhorn(streams), T.dynamic("n")
    warps = min(MOST_WARPS, rows * quarters)

    @T.prim_func
    def hc_mix_finish(
        partial: T.Tensor((quarters * fans * pieces, num_rows, SLOTS), "float32"),
        scale: T.Tensor((3,), "float32"),
        base: T.Tensor((mixes,), "float32"),
        next_read: T.Tensor((num_rows, streams), "float32"),
        write: T.Tensor((num_rows, streams), "float32"),
        carry: T.Tensor((num_rows, streams * streams), "float32"),
        norm_eps: T.float32,
        mix_eps: T.float32,
        iterations: T.int32,
    ) -> None:
        with T.Kernel(T.ceildiv(num_rows, rows), threads=WARP * warps) as block:
            thread, lane, warp = T.get_thread_binding(), T.get_thread_binding() % WARP, T.get_thread_binding() // WARP
            quarter_sums = T.alloc_shared((quarters, rows, SLOTS), "float32")
            sums = T.alloc_shared((rows, SLOTS + 1), "float32")
            comb = T.alloc_local((streams * streams,), "float32")
            total, fan, root, largest = (T.alloc_var("float32") for _ in range(4))
            row, quarter = T.alloc_var("int32"), T.alloc_var("int32")
            T.pdl_sync()
            for task in T.unroll(rows * quarters // warps):
                quarter = (task * warps + warp) // rows
                row = (task * warps + warp) % rows
                if block * rows + row < num_rows and lane <= mixes:
                    total = 0.0
                    for f in T.unroll(fans):
                        fan = partial[(quarter * fans + f) * pieces, block * rows + row, lane]
                        for p in T.unroll(pieces - 1):
                            fan = fan + partial[(quarter * fans + f) * pieces + p + 1, block * rows + row, lane]
                        total = total + fan
                    quarter_sums[quarter, row, lane] = total
            T.sync_threads()
            for task in T.unroll(-(-rows // warps)):
                row = task * warps + warp
                if row < rows:
                    total = quarter_sums[0, row, lane]
                    for q in T.unroll(quarters - 1):
                        total = total + quarter_sums[q + 1, row, lane]
                    sums[row, lane] = total
            T.sync_threads()
            row = block * rows + thread
            if thread < rows and row < num_rows:
                root = T.rsqrt(sums[thread, mixes] / (streams * width) + norm_eps)
                for i in T.unroll(streams * streams):
                    comb[i] = sums[thread, 2 * streams + i] * root * scale[2] + base[2 * streams + i]
                for j in T.unroll(streams):
                    largest = comb[j * streams]
                    for k in T.unroll(streams - 1):
                        largest = T.max(largest, comb[j * streams + k + 1])
                    for k in T.unroll(streams):
                        comb[j * streams + k] = T.exp(comb[j * streams + k] - largest)
                normalised(comb, mix_eps, iterations)
                for i in T.vectorized(streams * streams):
                    carry[row, i] = comb[i]
            # Gates are another warp's, as long as the first one divides.
            row = block * rows + (thread - WARP)
            if thread >= WARP and thread < WARP + rows and row < num_rows:
                root = T.rsqrt(sums[thread - WARP, mixes] / (streams * width) + norm_eps)
                for i in T.unroll(streams):
                    next_read[row, i] = mix_eps + 1.0 / (
                        1.0 + T.exp(-(sums[thread - WARP, i] * root * scale[0] + base[i]))
                    )
                    write[row, i] = 2.0 / (
                        1.0 + T.exp(-(sums[thread - WARP, streams + i] * root * scale[1] + base[streams + i]))
                    )

    return compiled(hc_mix_finish, architecture)
