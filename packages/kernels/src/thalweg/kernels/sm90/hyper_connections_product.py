"""Products of the trunk with hyper-connection weights on Hopper, and its squares, both as sums over parts of a row.

Tensor cores multiply bfloat16. A float32 weight is the sum of three of them, exactly, so one product with three planes
of weights, whose columns are added up, is the product with the weight itself, and the trunk is read once.
"""
# Without postponed annotations: those of the kernel are its arguments' types to TileLang.
# mypy: disable-error-code="valid-type, name-defined, untyped-decorator, no-any-return"

import functools
from dataclasses import dataclass
from typing import Any

from thalweg.interfaces import ConfigError
from thalweg.kernels.sm90.hyper_connections_finish import SLOTS
from thalweg.kernels.sm90.library import ARCHITECTURE, compiled, tilelang

CHUNK = 64
"""Columns of the trunk that are multiplied at once."""
MOST_PIECES, MOST_FANS, MOST_QUARTERS = 80, 16, 4
PLANES = 3
MOST_BLOCK_ROWS = 256
STAGES = 4
OCTETS = 8
"""Parts of a chunk whose squares are added up on their own: eight columns, which a thread reads at once."""


@dataclass(frozen=True, slots=True)
class Division:
    """How the sum over the columns of a row is divided, whoever forms its parts."""

    piece_chunks: int
    """Of 64 columns in a piece."""
    fan_pieces: int
    """In a fan."""
    quarter_fans: int
    """In a quarter."""
    quarters: int
    """Of a row."""

    @property
    def fans(self) -> int:
        """Of a row."""
        return self.quarters * self.quarter_fans

    @property
    def pieces(self) -> int:
        """Of a row."""
        return self.fans * self.fan_pieces


@dataclass(frozen=True, slots=True)
class Launch:
    """How blocks share the work on one number of rows."""

    block_rows: int
    """Rows of a block."""
    blocks: int
    """That share the columns of a row: its pieces, fans or quarters."""
    has_planes: bool
    """Whether weights are split before, for blocks that have enough rows not to do it themselves."""


@functools.cache
def division_of(columns: int) -> Division:
    """The division for rows of `columns` in all streams. Raises ConfigError for no multiple of 64."""
    if columns <= 0 or columns % CHUNK:
        raise ConfigError(f"trunk has rows of {columns} columns in all streams; a multiple of {CHUNK} is required")
    chunks = columns // CHUNK
    pieces = _largest_divisor(chunks, MOST_PIECES)
    fans = _largest_divisor(pieces, MOST_FANS)
    quarters = _largest_divisor(fans, MOST_QUARTERS)
    return Division(chunks // pieces, pieces // fans, fans // quarters, quarters)


def _largest_divisor(number: int, most: int) -> int:
    return max(count for count in range(1, most + 1) if number % count == 0)


@functools.cache
def plane_kernel(mixes: int, columns: int, architecture: str = ARCHITECTURE) -> Any:
    """The compiled kernel that splits weights into planes: high, middle and low parts, bfloat16 each."""
    T = tilelang().language
    threads, vector = 128, 4

    @T.prim_func
    def hc_mix_planes(
        fn: T.Tensor((mixes, columns), "float32"), planes: T.Tensor((PLANES * mixes, columns), "bfloat16")
    ) -> None:
        with T.Kernel(mixes, T.ceildiv(columns, threads * vector), threads=threads) as (row, block):
            place = block * threads + T.get_thread_binding()
            rest = T.alloc_local((PLANES * vector,), "float32")
            part = T.alloc_local((PLANES * vector,), "bfloat16")
            T.pdl_trigger()
            if place * vector < columns:
                for i in T.vectorized(vector):
                    rest[i] = fn[row, place * vector + i]
                for plane in T.unroll(PLANES):
                    for i in T.unroll(vector):
                        part[plane * vector + i] = T.cast(rest[plane * vector + i], "bfloat16")
                    if plane < PLANES - 1:
                        for i in T.unroll(vector):
                            rest[(plane + 1) * vector + i] = rest[plane * vector + i] - T.cast(
                                part[plane * vector + i], "float32"
                            )
                    for i in T.vectorized(vector):
                        planes[plane * mixes + row, place * vector + i] = part[plane * vector + i]

    return compiled(hc_mix_planes, architecture)


@functools.cache
def product_kernel(streams: int, width: int, launch: Launch, architecture: str = ARCHITECTURE) -> Any:
    """The compiled kernel of the partial sums; fn is float32 weights, or their planes."""
    T = tilelang().language
    columns, mixes = streams * width, (2 + streams) * streams
    division, num_rows = division_of(columns), T.dynamic("n")
    chunks, piece_chunks = columns // CHUNK // launch.blocks, division.piece_chunks
    fan_chunks = min(chunks, division.fan_pieces * piece_chunks)
    is_joined = fan_chunks < chunks
    block_rows, has_planes = launch.block_rows, launch.has_planes
    padded = -(-mixes // 16) * 16  # what nobody writes there gives sums that nobody reads

    def rounded(value: Any) -> Any:
        return T.cast(value, "bfloat16")

    def rest(value: Any) -> Any:
        return value - T.cast(rounded(value), "float32")

    @T.macro
    def split(weights: Any, planes: Any) -> None:
        for i, j in T.Parallel(mixes, CHUNK):
            planes[i, j] = rounded(weights[i, j])
            planes[i + padded, j] = rounded(rest(weights[i, j]))
            planes[i + 2 * padded, j] = rounded(rest(rest(weights[i, j])))

    @T.macro
    def add_squares(rows: Any, squares: Any, c: Any) -> None:
        terms = T.alloc_fragment((block_rows, OCTETS, CHUNK // OCTETS), "float32")
        sums = T.alloc_fragment((block_rows, OCTETS), "float32")
        for i, j, k in T.Parallel(block_rows, OCTETS, CHUNK // OCTETS):
            terms[i, j, k] = T.cast(rows[i, j * (CHUNK // OCTETS) + k], "float32") * T.cast(
                rows[i, j * (CHUNK // OCTETS) + k], "float32"
            )
        T.reduce_sum(terms, sums, dim=2)
        if c % piece_chunks == 0:
            for i, j in T.Parallel(block_rows, OCTETS):
                squares[i, j] = sums[i, j]
        else:
            for i, j in T.Parallel(block_rows, OCTETS):
                squares[i, j] = squares[i, j] + sums[i, j]

    @T.macro
    def add(fan: Any, fan_square: Any, total: Any, square: Any) -> None:
        for i in T.Parallel(block_rows):
            square[i] = square[i] + fan_square[i]
        for i, j in T.Parallel(block_rows, padded):
            total[i, j] = total[i, j] + fan[i, j]
        T.clear(fan)
        T.clear(fan_square)

    @T.prim_func
    def hc_mix_product(
        trunk: T.Tensor((num_rows, columns), "bfloat16"),
        fn: T.Tensor((PLANES * mixes if has_planes else mixes, columns), "bfloat16" if has_planes else "float32"),
        partial: T.Tensor((launch.blocks, num_rows, SLOTS), "float32"),
    ) -> None:
        with T.Kernel(T.ceildiv(num_rows, block_rows), launch.blocks, threads=2 * block_rows) as (block, part):
            rows = T.alloc_shared((block_rows, CHUNK), "bfloat16")
            weights = T.alloc_shared((mixes, CHUNK), "float32")
            planes = T.alloc_shared((PLANES * padded, CHUNK), "bfloat16")
            product = T.alloc_fragment((block_rows, PLANES * padded), "float32")
            by_plane = T.reshape(product, (block_rows, PLANES, padded))
            fan = T.alloc_fragment((block_rows, padded), "float32")
            total = T.alloc_fragment((block_rows, padded), "float32")
            squares = T.alloc_fragment((block_rows, OCTETS), "float32")
            fan_square = T.alloc_fragment((block_rows,), "float32")
            square = T.alloc_fragment((block_rows,), "float32")
            T.pdl_trigger()
            if has_planes:
                T.pdl_sync()
            if block_rows == MOST_BLOCK_ROWS:  # else TileLang shares out registers itself
                T.annotate_producer_reg_dealloc(24)
                T.annotate_consumer_reg_alloc(112)
            T.clear(fan)
            T.clear(fan_square)
            if is_joined:
                T.clear(total)
                T.clear(square)
            for c in T.Pipelined(chunks, num_stages=min(chunks, STAGES)):
                T.copy(trunk[block * block_rows, (part * chunks + c) * CHUNK], rows)
                if has_planes:
                    T.copy(fn[0, (part * chunks + c) * CHUNK], planes[0:mixes, 0:CHUNK])
                    T.copy(fn[mixes, (part * chunks + c) * CHUNK], planes[padded : padded + mixes, 0:CHUNK])
                    T.copy(fn[2 * mixes, (part * chunks + c) * CHUNK], planes[2 * padded : 2 * padded + mixes, 0:CHUNK])
                else:
                    T.copy(fn[0, (part * chunks + c) * CHUNK], weights)
                    split(weights, planes)
                add_squares(rows, squares, c)
                T.gemm(
                    rows,
                    planes,
                    product,
                    transpose_B=True,
                    clear_accum=c % piece_chunks == 0,
                    policy=T.GemmWarpPolicy.FullRow,
                )
                if c % piece_chunks == piece_chunks - 1:
                    T.reduce_sum(squares, fan_square, dim=1, clear=False)
                    T.reduce_sum(by_plane, fan, dim=1, clear=False)
                    if is_joined and c % fan_chunks == fan_chunks - 1:
                        add(fan, fan_square, total, square)
            result, result_square = (total, square) if is_joined else (fan, fan_square)
            for i, j in T.Parallel(block_rows, padded):
                if block * block_rows + i < num_rows and j < mixes:
                    partial[part, block * block_rows + i, j] = result[i, j]
            for i in T.Parallel(block_rows):
                if block * block_rows + i < num_rows:
                    partial[part, block * block_rows + i, mixes] = result_square[i]

    return compiled(hc_mix_product, architecture)
