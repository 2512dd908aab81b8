"""The kernel of FP8 linears for some rows on Hopper: both operands go to the tensor cores as they are stored.

CUDA C++ in cuda/fp8_stream.cuh: TileLang has no product whose result is scaled by ordinary arithmetic while the next is
formed.
"""
# Without postponed annotations: those of the kernel are its arguments' types to TileLang.
# mypy: disable-error-code="valid-type, name-defined, untyped-decorator"

import functools
from dataclasses import dataclass
from typing import Any

from thalweg.kernels.reference.packed_linear import TILE_BYTES
from thalweg.kernels.sm90.cuda_source import cuda_source
from thalweg.kernels.sm90.library import ARCHITECTURE, compiled, tilelang
from thalweg.kernels.sm90.row_products import TILE
from thalweg.kernels.sm90.tile_shapes import THREADS, WEIGHT_ROWS

MOST_ROWS = 32
"""Of x in a block."""
FILLERS = 128
"""Threads that fill stages."""
STEP_GROUPS = 4
"""Groups of 32 columns in a stage."""
TILES_DOWN = WEIGHT_ROWS // TILE
RESIDENT = 2
"""Blocks that a processor must have room for at a time."""
BLOCK_BYTES = 113 * 1024
"""Shared memory for each of them."""
LEAST_STEPS = 3
"""Of each block that shares out columns."""
MANY_STEPS = 16
"""From which on it pays if some processors have two blocks."""


@dataclass(frozen=True, slots=True)
class StreamShape:
    """Of a block."""

    rows: int
    """Rows of x: 16 or 32."""
    splits: int
    """Blocks that share out the columns, a cluster."""

    @property
    def stage_bytes(self) -> int:
        """Weights and rows, factors of products, scales, barriers."""
        factors = STEP_GROUPS * TILES_DOWN * (self.rows + 16)
        return (WEIGHT_ROWS + self.rows) * TILE * STEP_GROUPS + 4 * (factors + self.rows + TILES_DOWN) + 16

    @property
    def stages(self) -> int:
        """As many as there is room for."""
        return BLOCK_BYTES // self.stage_bytes

    @property
    def shared_bytes(self) -> int:
        """For stages, in whole periods of a swizzle. Sums that take their place need less."""
        return -(-self.stages * self.stage_bytes // 1024) * 1024


@functools.cache
def stream_shape(num_rows: int, places: int, width: int, processors: int) -> StreamShape:
    """The shape for num_rows (1..MOST_ROWS) by a weight of 128 * places rows and 32 * width columns."""
    steps = -(-width // STEP_GROUPS)

    def fits(splits: int) -> bool:
        most = processors * 5 // 4 if steps >= splits * MANY_STEPS else processors
        return places * splits <= most and steps >= splits * LEAST_STEPS

    return StreamShape(16 if num_rows <= 16 else MOST_ROWS, next(filter(fits, (8, 4, 3, 2)), 1))


@functools.cache
def fp8_stream_kernel(shape: StreamShape, architecture: str = ARCHITECTURE) -> Any:
    """The compiled kernel."""
    T = tilelang().language
    n, tiles_down, width, x_columns = T.dynamic("n"), T.dynamic("tiles_down"), T.dynamic("width"), T.dynamic("K")
    name = f"thalweg::fp8_stream<{shape.rows}, {shape.stages}, {shape.splits}, {shape.shared_bytes}>"
    text = cuda_source("fp8_stream.cuh")

    @T.prim_func
    def fp8_stream(
        codes: T.Tensor((n, x_columns), "uint8"),
        scales: T.Tensor((n, x_columns // TILE), "uint8"),
        tiles: T.Tensor((tiles_down, width, TILE_BYTES), "uint8"),
        tile_scales: T.Tensor((tiles_down, width), "uint8"),
        out: T.Tensor((n, tiles_down * TILE), "bfloat16"),
        groups: T.int32,
    ) -> None:
        with T.Kernel(
            groups * T.ceildiv(T.truncdiv(tiles_down, groups), TILES_DOWN) * shape.splits,
            T.ceildiv(n, shape.rows),
            threads=FILLERS + THREADS,
            cluster_dims=(shape.splits, 1, 1),
        ) as (block, column):
            T.import_source(text)
            T.annotate_min_blocks_per_sm(RESIDENT)
            shared = T.alloc_shared((shape.shared_bytes,), "uint8")
            T.call_extern(
                "handle",
                name,
                T.address_of(codes[0, 0]),
                T.address_of(scales[0, 0]),
                T.address_of(tiles[0, 0, 0]),
                T.address_of(tile_scales[0, 0]),
                T.address_of(out[0, 0]),
                T.address_of(shared[0]),
                n,
                width,
                tiles_down,
                groups,
                block,
                column,
            )

    return compiled(fp8_stream, architecture)
