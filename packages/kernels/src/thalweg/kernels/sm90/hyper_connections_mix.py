"""Coefficients of hyper-connections on Hopper: a product of bfloat16 rows with float32 weights, and what follows it.

Tensor cores multiply bfloat16. A float32 weight is the sum of three of them, exactly, so one product with three planes
of weights, whose columns are added up, is the product with the weight itself, and the trunk is read once.

The sum over a row's columns is formed in pieces, those of a fan are added in order, then the fans. For few rows every
piece is a block's, so that many read the weights at once; for more rows a block has whole fans, and adds up planes at
the end of a fan instead of a piece. So last bits depend on the number of rows; there is an implementation that gives
up the speed at many rows for bits that do not.
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
from thalweg.kernels.registry import Implementation
from thalweg.kernels.sm90.hyper_connections_finish import SLOTS, finish_kernel
from thalweg.kernels.sm90.library import ARCHITECTURE, compiled, tilelang
from thalweg.kernels.sm90.row_parts import check_contiguous, check_device

CHUNK = 64
"""Columns of the trunk that are multiplied at once."""
MOST_PIECES = 64
PLANES = 3
FEW_ROWS, SOME_ROWS = 256, 4096
"""Up to so many rows every piece is a block's, and every fan."""
BLOCK_ROWS = 64
"""Rows of a block that splits its weights itself; twice as many where planes are made before."""
STREAMS = (2, 4)


@dataclass(frozen=True, slots=True)
class Division:
    """How the sum over the columns of a row is divided."""

    piece_chunks: int
    """Of 64 columns in a piece."""
    fan_pieces: int
    """In a fan."""
    fans: int
    """Of a row."""

    @property
    def pieces(self) -> int:
        """Of a row."""
        return self.fans * self.fan_pieces


@dataclass(frozen=True, slots=True)
class Launch:
    """How blocks share the work on one number of rows."""

    blocks: int
    """That share the columns of a row."""
    sums: int
    """That each of them writes for a row."""
    has_planes: bool

    @property
    def partials(self) -> int:
        """Sums of a row that are written."""
        return self.blocks * self.sums


@functools.cache
def division_of(columns: int) -> Division:
    """The division for rows of `columns` in all streams. Raises ConfigError for no multiple of 64."""
    if columns <= 0 or columns % CHUNK:
        raise ConfigError(f"trunk has rows of {columns} columns in all streams; a multiple of {CHUNK} is required")
    chunks = columns // CHUNK
    pieces = max(count for count in range(1, MOST_PIECES + 1) if chunks % count == 0)
    fan_pieces = 4 if pieces % 4 == 0 else 1
    return Division(chunks // pieces, fan_pieces, pieces // fan_pieces)


def launch_for(num_rows: int, division: Division) -> Launch:
    """Enough blocks to keep a device busy, and no more."""
    if num_rows <= FEW_ROWS:
        return Launch(division.pieces, 1, False)
    sums = 4 if num_rows > SOME_ROWS and division.fans % 4 == 0 else 1
    return Launch(division.fans // sums, sums, True)


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
def partial_kernel(streams: int, width: int, launch: Launch, stages: int = 4, architecture: str = ARCHITECTURE) -> Any:
    """The compiled kernel of the partial sums; fn is float32 weights, or their planes."""
    T = tilelang().language
    columns, mixes = streams * width, (2 + streams) * streams
    division, num_rows = division_of(columns), T.dynamic("n")
    piece_chunks, chunks = division.piece_chunks, columns // CHUNK // launch.blocks
    sum_chunks = chunks // launch.sums
    has_planes, block_rows = launch.has_planes, 2 * BLOCK_ROWS if launch.has_planes else BLOCK_ROWS
    planes = PLANES * mixes
    padded = -(-planes // 16) * 16  # what nobody writes there gives sums that nobody reads

    def rounded(value: Any) -> Any:
        return T.cast(value, "bfloat16")

    def rest(value: Any) -> Any:
        return value - T.cast(rounded(value), "float32")

    @T.macro
    def split(weights: Any, parts: Any) -> None:
        for i, j in T.Parallel(mixes, CHUNK):
            parts[i, j] = rounded(weights[i, j])
            parts[i + mixes, j] = rounded(rest(weights[i, j]))
            parts[i + 2 * mixes, j] = rounded(rest(rest(weights[i, j])))

    @T.macro
    def add_squares(rows: Any, squares: Any, c: Any) -> None:
        if c % piece_chunks == 0:
            for i, j in T.Parallel(block_rows, CHUNK):
                squares[i, j] = T.cast(rows[i, j], "float32") * T.cast(rows[i, j], "float32")
        else:
            for i, j in T.Parallel(block_rows, CHUNK):
                squares[i, j] = squares[i, j] + T.cast(rows[i, j], "float32") * T.cast(rows[i, j], "float32")

    @T.macro
    def add_piece(piece: Any, total: Any, squares: Any, square: Any, c: Any) -> None:
        piece_square = T.alloc_fragment((block_rows,), "float32")
        T.reduce_sum(squares, piece_square, dim=1)
        if c % sum_chunks == piece_chunks - 1:
            for i in T.Parallel(block_rows):
                square[i] = piece_square[i]
            for i, j in T.Parallel(block_rows, padded):
                total[i, j] = piece[i, j]
        else:
            for i in T.Parallel(block_rows):
                square[i] = square[i] + piece_square[i]
            for i, j in T.Parallel(block_rows, padded):
                total[i, j] = total[i, j] + piece[i, j]

    @T.macro
    def store(total: Any, square: Any, staged: Any, partial: Any, first_row: Any, number: Any) -> None:
        T.copy(total, staged)
        for i, j in T.Parallel(block_rows, mixes):
            if first_row + i < num_rows:
                partial[number, first_row + i, j] = staged[i, j] + (staged[i, j + mixes] + staged[i, j + 2 * mixes])
        for i in T.Parallel(block_rows):
            if first_row + i < num_rows:
                partial[number, first_row + i, mixes] = square[i]

    @T.prim_func
    def hc_mix_partial(
        trunk: T.Tensor((num_rows, columns), "bfloat16"),
        fn: T.Tensor((planes if has_planes else mixes, columns), "bfloat16" if has_planes else "float32"),
        partial: T.Tensor((launch.partials, num_rows, SLOTS), "float32"),
    ) -> None:
        with T.Kernel(T.ceildiv(num_rows, block_rows), launch.blocks, threads=2 * block_rows) as (block, part):
            rows = T.alloc_shared((block_rows, CHUNK), "bfloat16")
            weights = T.alloc_shared((mixes, CHUNK), "float32")
            parts = T.alloc_shared((padded, CHUNK), "bfloat16")
            staged = T.alloc_shared((block_rows, padded), "float32")
            piece = T.alloc_fragment((block_rows, padded), "float32")
            total = T.alloc_fragment((block_rows, padded), "float32")
            squares = T.alloc_fragment((block_rows, CHUNK), "float32")
            square = T.alloc_fragment((block_rows,), "float32")
            for c in T.Pipelined(chunks, num_stages=min(chunks, stages)):
                T.copy(trunk[block * block_rows, (part * chunks + c) * CHUNK], rows)
                if has_planes:
                    T.copy(fn[0, (part * chunks + c) * CHUNK], parts[0:planes, 0:CHUNK])
                else:
                    T.copy(fn[0, (part * chunks + c) * CHUNK], weights)
                    split(weights, parts)
                T.gemm(
                    rows,
                    parts,
                    piece,
                    transpose_B=True,
                    clear_accum=c % piece_chunks == 0,
                    policy=T.GemmWarpPolicy.FullRow,
                )
                add_squares(rows, squares, c)
                if c % piece_chunks == piece_chunks - 1:
                    add_piece(piece, total, squares, square, c)
                    if c % sum_chunks == sum_chunks - 1:
                        store(total, square, staged, partial, block * block_rows, part * launch.sums + c // sum_chunks)

    return compiled(hc_mix_partial, architecture)


def hc_mix(
    trunk: Tensor, fn: Tensor, scale: Tensor, base: Tensor, norm_eps: float, mix_eps: float, iterations: int
) -> HcMix:
    """As the reference, for 2 or 4 streams."""
    _check(trunk, fn, scale, base, iterations)
    launch = launch_for(trunk.shape[0], division_of(fn.shape[1]))
    return _mix(trunk, fn, scale, base, launch, norm_eps, mix_eps, iterations)


def hc_mix_by_pieces(
    trunk: Tensor, fn: Tensor, scale: Tensor, base: Tensor, norm_eps: float, mix_eps: float, iterations: int
) -> HcMix:
    """As hc_mix, divided for few rows whatever their number."""
    _check(trunk, fn, scale, base, iterations)
    launch = launch_for(0, division_of(fn.shape[1]))
    return _mix(trunk, fn, scale, base, launch, norm_eps, mix_eps, iterations)


def _mix(
    trunk: Tensor,
    fn: Tensor,
    scale: Tensor,
    base: Tensor,
    launch: Launch,
    norm_eps: float,
    mix_eps: float,
    iterations: int,
) -> HcMix:
    n, streams, width = trunk.shape
    shapes = ((n, streams), (n, streams), (n, streams, streams))
    mix = HcMix(*(torch.empty(shape, dtype=torch.float32, device=trunk.device) for shape in shapes))
    if n:
        fans = division_of(streams * width).fans
        partial = torch.empty(launch.partials, n, SLOTS, dtype=torch.float32, device=trunk.device)
        with torch.cuda.device(trunk.device):
            weights = _planes(fn) if launch.has_planes else fn
            partial_kernel(streams, width, launch)(trunk.view(n, -1), weights, partial)
            finish = finish_kernel(streams, width, fans, launch.partials // fans, launch.has_planes)
            finish(partial, scale, base, mix.next_read, mix.write, mix.carry.view(n, -1), norm_eps, mix_eps, iterations)
    return mix


def _planes(fn: Tensor) -> Tensor:
    mixes, columns = fn.shape
    planes = torch.empty(PLANES * mixes, columns, dtype=torch.bfloat16, device=fn.device)
    plane_kernel(mixes, columns)(fn, planes)
    return planes


def _check(trunk: Tensor, fn: Tensor, scale: Tensor, base: Tensor, iterations: int) -> None:
    check_rows("trunk", trunk, torch.bfloat16, ("n", "m", "h"))
    streams, width = trunk.shape[1:]
    if streams not in STREAMS:
        raise ConfigError(f"trunk has {streams} streams; {' or '.join(map(str, STREAMS))} are required")
    mixes = (2 + streams) * streams
    check_rows("fn", fn, torch.float32, (mixes, streams * width))
    check_rows("scale", scale, torch.float32, (3,))
    check_rows("base", base, torch.float32, (mixes,))
    if iterations < 1:
        raise ConfigError(f"iterations is {iterations}; at least 1 column division is needed")
    check_contiguous(trunk=trunk, fn=fn)
    check_device(trunk=trunk, fn=fn, scale=scale, base=base)
    division_of(streams * width)


IMPLEMENTATIONS = (
    Implementation(
        op="hc_mix",
        backend="sm90",
        provider="tilelang",
        function=hc_mix,
        priority=1,
        deterministic=True,
        graph_safe=True,
    ),
    Implementation(
        op="hc_mix",
        backend="sm90",
        provider="tilelang",
        function=hc_mix_by_pieces,
        deterministic=True,
        batch_invariant=True,
        graph_safe=True,
    ),
)

COMPILE_EXAMPLES: dict[str, Callable[[str], Any]] = {
    "hc_mix_planes": lambda architecture: plane_kernel(24, 20480, architecture),
    "hc_mix_partial": lambda architecture: partial_kernel(4, 5120, Launch(4, 4, True), architecture=architecture),
    "hc_mix_finish": lambda architecture: finish_kernel(4, 5120, 16, 4, False, architecture),
}
