"""Coefficients of hyper-connections on Hopper: a product of bfloat16 rows with float32 weights, and what follows it.

Tensor cores multiply bfloat16. A float32 weight is the sum of three of them, exactly, so three products into one
float32 accumulator are the product with the weight itself, and the trunk is read once.

The sum over a row's columns is formed in pieces; pieces of a group are added in order, then groups. For few rows every
piece is a block's, so that the weights are read by many at once; for many rows a whole group is. The order stays the
same, and with it the bits.
"""
# Without postponed annotations: those of the kernel are its arguments' types to TileLang.
# mypy: disable-error-code="valid-type, name-defined, untyped-decorator, no-any-return"

import functools
from collections.abc import Callable
from dataclasses import dataclass
from typing import Any

import torch
from torch import Tensor

from thalweg.interfaces import ConfigError
from thalweg.kernels.native_formats import HcMix
from thalweg.kernels.reference.fused_rows import check_rows
from thalweg.kernels.sm90.library import ARCHITECTURE, compiled, tilelang
from thalweg.kernels.sm90.row_parts import WARP, Macro, check_contiguous, check_device, implementation

CHUNK = 64
"""Columns of the trunk that are multiplied at once."""
MOST_PIECES = 64
GROUPS = 4
SLOTS = 32
"""Columns of a partial sum: the mixes, then the sum of squares, then nothing."""
MOST_STREAMS = 4
FEW_ROWS, MANY_ROWS = 64, 128
"""Rows of a block where a piece is a block's, and where a group is."""
MANY_FROM = 2048
"""Rows from which on groups are enough to keep a device busy."""
FINISHED_ROWS = 8
"""Rows of a block that turns sums into coefficients."""


@dataclass(frozen=True, slots=True)
class Pieces:
    """How the sum over the columns of a row is divided."""

    chunks: int
    """Of 64 columns in a piece."""
    pieces: int
    """Of a row."""
    groups: int
    """Of a row, each of equally many pieces."""


@functools.cache
def pieces_of(columns: int) -> Pieces:
    """The division for rows of `columns` in all streams. Raises ConfigError for no multiple of 64."""
    if columns <= 0 or columns % CHUNK:
        raise ConfigError(f"trunk has rows of {columns} columns in all streams; a multiple of {CHUNK} is required")
    chunks = columns // CHUNK
    pieces = max(count for count in range(1, MOST_PIECES + 1) if chunks % count == 0)
    return Pieces(chunks // pieces, pieces, GROUPS if pieces % GROUPS == 0 else 1)


@functools.cache
def partial_kernel(streams: int, width: int, block_rows: int, splits: int, architecture: str = ARCHITECTURE) -> Any:
    """The compiled kernel of the sums over each of `splits` parts of the columns: whole pieces, in order."""
    T = tilelang().language
    columns, mixes = streams * width, (2 + streams) * streams
    division = pieces_of(columns)
    chunks, num_rows = columns // CHUNK // splits, T.dynamic("n")
    padded = -(-mixes // 16) * 16
    rows_of_a_warpgroup = T.GemmWarpPolicy.FullRow

    def rounded(value: Any) -> Any:
        return T.cast(value, "bfloat16")

    def rest(value: Any) -> Any:
        return value - T.cast(rounded(value), "float32")

    @T.macro
    def split(weights: Any, high: Any, middle: Any, low: Any) -> None:
        """Three bfloat16 whose sum is the float32 weight."""
        for i, j in T.Parallel(mixes, CHUNK):
            high[i, j] = rounded(weights[i, j])
            middle[i, j] = rounded(rest(weights[i, j]))
            low[i, j] = rounded(rest(rest(weights[i, j])))

    @T.prim_func
    def hc_mix_partial(
        trunk: T.Tensor((num_rows, columns), "bfloat16"),
        fn: T.Tensor((mixes, columns), "float32"),
        partial: T.Tensor((splits, num_rows, SLOTS), "float32"),
    ) -> None:
        with T.Kernel(T.ceildiv(num_rows, block_rows), splits, threads=2 * block_rows) as (block, part):
            rows = T.alloc_shared((block_rows, CHUNK), "bfloat16")
            weights = T.alloc_shared((mixes, CHUNK), "float32")
            high = T.alloc_shared((padded, CHUNK), "bfloat16")
            middle = T.alloc_shared((padded, CHUNK), "bfloat16")
            low = T.alloc_shared((padded, CHUNK), "bfloat16")
            piece = T.alloc_fragment((block_rows, padded), "float32")
            total = T.alloc_fragment((block_rows, padded), "float32")
            squares = T.alloc_fragment((block_rows, CHUNK), "float32")
            piece_square = T.alloc_fragment((block_rows,), "float32")
            square = T.alloc_fragment((block_rows,), "float32")
            T.clear(total)
            T.clear(square)
            if padded > mixes:
                for i, j in T.Parallel(padded - mixes, CHUNK):
                    high[mixes + i, j] = 0
                    middle[mixes + i, j] = 0
                    low[mixes + i, j] = 0
            for c in T.Pipelined(chunks, num_stages=min(chunks, 5 if block_rows == FEW_ROWS else 4)):
                T.copy(trunk[block * block_rows, (part * chunks + c) * CHUNK], rows)
                T.copy(fn[0, (part * chunks + c) * CHUNK], weights)
                split(weights, high, middle, low)
                is_first = c % division.chunks == 0
                T.gemm(rows, low, piece, transpose_B=True, clear_accum=is_first, policy=rows_of_a_warpgroup)
                T.gemm(rows, middle, piece, transpose_B=True, policy=rows_of_a_warpgroup)
                T.gemm(rows, high, piece, transpose_B=True, policy=rows_of_a_warpgroup)
                if c % division.chunks == 0:
                    for i, j in T.Parallel(block_rows, CHUNK):
                        squares[i, j] = T.cast(rows[i, j], "float32") * T.cast(rows[i, j], "float32")
                else:
                    for i, j in T.Parallel(block_rows, CHUNK):
                        squares[i, j] = squares[i, j] + T.cast(rows[i, j], "float32") * T.cast(rows[i, j], "float32")
                if c % division.chunks == division.chunks - 1:
                    T.reduce_sum(squares, piece_square, dim=1)
                    for i in T.Parallel(block_rows):
                        square[i] = square[i] + piece_square[i]
                    for i, j in T.Parallel(block_rows, padded):
                        total[i, j] = total[i, j] + piece[i, j]
            for i, j in T.Parallel(block_rows, padded):
                if block * block_rows + i < num_rows and j < mixes:
                    partial[part, block * block_rows + i, j] = total[i, j]
            for i in T.Parallel(block_rows):
                if block * block_rows + i < num_rows:
                    partial[part, block * block_rows + i, mixes] = square[i]

    return compiled(hc_mix_partial, architecture)


@functools.cache
def sinkhorn(streams: int) -> Macro:
    """Macro (comb, mix_eps, iterations): exponentials local float32 [streams * streams], normalised in place.

    Sums are in order, as in the reference; a row or column is multiplied by one reciprocal, where the reference divides
    its elements one by one.
    """
    T = tilelang().language

    @T.macro
    def normalise(comb: Any, stride: Any, step: Any, eps: Any, eps_inside: Any, eps_outside: Any) -> None:
        """Lines of elements `stride` apart that begin `step` apart."""
        for line in T.unroll(streams):
            total = T.alloc_var("float32")
            total = comb[line * step]
            for i in T.unroll(streams - 1):
                total = total + comb[line * step + (i + 1) * stride]
            total = T.ieee_frcp(total + eps_inside * eps)
            for i in T.unroll(streams):
                comb[line * step + i * stride] = comb[line * step + i * stride] * total + eps_outside * eps

    @T.macro
    def apply(comb: Any, mix_eps: Any, iterations: Any) -> None:
        normalise(comb, 1, streams, mix_eps, 0.0, 1.0)
        normalise(comb, streams, 1, mix_eps, 1.0, 0.0)
        for _ in T.serial(iterations - 1):
            normalise(comb, 1, streams, mix_eps, 1.0, 0.0)
            normalise(comb, streams, 1, mix_eps, 1.0, 0.0)

    return apply


@functools.cache
def finish_kernel(streams: int, width: int, splits: int, architecture: str = ARCHITECTURE) -> Any:
    """The compiled kernel that adds up `splits` partial sums and makes coefficients of them."""
    T = tilelang().language
    mixes, division, normalised = (2 + streams) * streams, pieces_of(streams * width), sinkhorn(streams)
    group_parts = max(splits // division.groups, 1)
    num_rows = T.dynamic("n")

    @T.prim_func
    def hc_mix_finish(
        partial: T.Tensor((splits, num_rows, SLOTS), "float32"),
        scale: T.Tensor((3,), "float32"),
        base: T.Tensor((mixes,), "float32"),
        next_read: T.Tensor((num_rows, streams), "float32"),
        write: T.Tensor((num_rows, streams), "float32"),
        carry: T.Tensor((num_rows, streams * streams), "float32"),
        norm_eps: T.float32,
        mix_eps: T.float32,
        iterations: T.int32,
    ) -> None:
        with T.Kernel(T.ceildiv(num_rows, FINISHED_ROWS), threads=WARP * FINISHED_ROWS) as block:
            thread = T.get_thread_binding()
            sums = T.alloc_shared((FINISHED_ROWS, SLOTS + 1), "float32")
            comb = T.alloc_local((streams * streams,), "float32")
            total, group, root, largest = (T.alloc_var("float32") for _ in range(4))
            row = T.alloc_var("int32")
            row = block * FINISHED_ROWS + thread // WARP
            total = 0.0
            if row < num_rows and thread % WARP <= mixes:
                for g in T.unroll(splits // group_parts):
                    group = 0.0
                    for p in T.unroll(group_parts):
                        group = group + partial[g * group_parts + p, row, thread % WARP]
                    total = total + group
            sums[thread // WARP, thread % WARP] = total
            T.sync_threads()
            row = block * FINISHED_ROWS + thread
            if thread < FINISHED_ROWS and row < num_rows:
                root = T.rsqrt(sums[thread, mixes] / (streams * width) + norm_eps)
                for i in T.unroll(streams):
                    next_read[row, i] = mix_eps + 1.0 / (1.0 + T.exp(-(sums[thread, i] * root * scale[0] + base[i])))
                    write[row, i] = 2.0 / (
                        1.0 + T.exp(-(sums[thread, streams + i] * root * scale[1] + base[streams + i]))
                    )
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

    return compiled(hc_mix_finish, architecture)


def hc_mix(
    trunk: Tensor, fn: Tensor, scale: Tensor, base: Tensor, norm_eps: float, mix_eps: float, iterations: int
) -> HcMix:
    """As the reference, for 2 or 4 streams."""
    check_rows("trunk", trunk, torch.bfloat16, ("n", "m", "h"))
    n, streams, width = trunk.shape
    if streams not in (2, MOST_STREAMS):
        raise ConfigError(f"trunk has {streams} streams; 2 or {MOST_STREAMS} are required")
    mixes = (2 + streams) * streams
    check_rows("fn", fn, torch.float32, (mixes, streams * width))
    check_rows("scale", scale, torch.float32, (3,))
    check_rows("base", base, torch.float32, (mixes,))
    if iterations < 1:
        raise ConfigError(f"iterations is {iterations}; at least 1 column division is needed")
    check_contiguous(trunk=trunk, fn=fn)
    check_device(trunk=trunk, fn=fn, scale=scale, base=base)
    division, device = pieces_of(streams * width), trunk.device
    mix = HcMix(
        *(
            torch.empty(n, *shape, dtype=torch.float32, device=device)
            for shape in ((streams,), (streams,), (streams,) * 2)
        )
    )
    if n:
        block_rows, splits = (FEW_ROWS, division.pieces) if n < MANY_FROM else (MANY_ROWS, division.groups)
        partial = torch.empty(splits, n, SLOTS, dtype=torch.float32, device=device)
        with torch.cuda.device(device):
            partial_kernel(streams, width, block_rows, splits)(trunk.view(n, -1), fn, partial)
            finish = finish_kernel(streams, width, splits)
            finish(partial, scale, base, mix.next_read, mix.write, mix.carry.view(n, -1), norm_eps, mix_eps, iterations)
    return mix


IMPLEMENTATIONS = (implementation(hc_mix),)

COMPILE_EXAMPLES: dict[str, Callable[[str], Any]] = {
    "hc_mix_partial": lambda architecture: partial_kernel(4, 5120, MANY_ROWS, GROUPS, architecture),
    "hc_mix_finish": lambda architecture: finish_kernel(4, 5120, MOST_PIECES, architecture),
}
