"""The kernels of FP8 linears for many rows on Hopper: the tensor cores' largest products, fed by asynchronous copies.

Rows of x become bfloat16 first, exactly; what they were is read by many blocks. Weights stay as they are stored until
they are in the registers of a product.
"""
# Without postponed annotations: those of the kernel are its arguments' types to TileLang.
# mypy: disable-error-code="valid-type, name-defined, untyped-decorator"

import functools
from typing import Any

from thalweg.kernels.sm90.cuda_source import cuda_source
from thalweg.kernels.sm90.library import ARCHITECTURE, compiled, tilelang
from thalweg.kernels.sm90.row_products import TILE
from thalweg.kernels.sm90.tile_shapes import THREADS, WEIGHT_ROWS, TileShape, operand_layout, sum_layout

TILES_DOWN = WEIGHT_ROWS // TILE
SCALE_COLUMNS = 256
"""Room for the scales of a row of tiles: 8192 columns of the weight."""
UNPACK_THREADS = 256
FACTOR = 2.0**60
"""By which tile_products.cuh makes operands too small."""


@functools.cache
def unpack_kernel(architecture: str = ARCHITECTURE) -> Any:
    """The compiled kernel that turns MXFP8 rows into bfloat16, in the order of columns that fp8_tiles_kernel reads."""
    T = tilelang().language
    n, width = T.dynamic("n"), T.dynamic("width")
    text = cuda_source("tile_products.cuh")

    @T.prim_func
    def unpack_rows(
        codes: T.Tensor((n, width * TILE), "uint8"),
        scales: T.Tensor((n, width), "uint8"),
        out: T.Tensor((n, width * TILE), "bfloat16"),
    ) -> None:
        with T.Kernel(T.ceildiv(width * 4, UNPACK_THREADS), n, threads=UNPACK_THREADS) as (block, row):
            T.import_source(text)
            place = block * UNPACK_THREADS + T.get_thread_binding()
            if place < width * 4:
                T.call_extern(
                    "handle",
                    "thalweg::unpack_columns",
                    T.address_of(codes[row, place * 8]),
                    T.cast(scales[row, place // 4], "uint32"),
                    T.address_of(out[row, place // 4 * TILE]),
                    place % 4,
                )

    return compiled(unpack_rows, architecture)


@functools.cache
def fp8_tiles_kernel(shape: TileShape, architecture: str = ARCHITECTURE) -> Any:
    """The compiled kernel for rows that unpack_kernel wrote."""
    T = tilelang().language
    n, columns, tiles_down, width = T.dynamic("n"), T.dynamic("K"), T.dynamic("tiles_down"), T.dynamic("width")
    across, splits = shape.columns // TILE, shape.splits
    text = cuda_source("tile_products.cuh")

    @T.prim_func
    def fp8_tiles(
        x: T.Tensor((n, columns), "bfloat16"),
        tiles: T.Tensor((tiles_down, width, 8, 128), "uint8"),
        scales: T.Tensor((tiles_down, width), "uint8"),
        out: T.Tensor((n, tiles_down * TILE), "bfloat16"),
        groups: T.int32,
    ) -> None:
        with T.Kernel(
            groups * T.ceildiv(T.truncdiv(tiles_down, groups), TILES_DOWN) * splits,
            T.ceildiv(n, shape.rows),
            threads=THREADS,
            cluster_dims=(splits, 1, 1),
        ) as (block, column):
            T.import_source(text)
            stored = T.alloc_shared((TILES_DOWN, across, 8, 128), "uint8")
            rows = T.alloc_shared((shape.rows, shape.columns), "bfloat16")
            stored_scales = T.alloc_shared((TILES_DOWN * SCALE_COLUMNS,), "uint8")
            staging = T.alloc_shared((shape.staged_floats,), "float32")
            operand = T.alloc_fragment((WEIGHT_ROWS, shape.columns), "bfloat16")
            sums = T.alloc_fragment((WEIGHT_ROWS, shape.rows), "float32")
            T.annotate_layout(
                {
                    operand: T.Fragment((WEIGHT_ROWS, shape.columns), forward_fn=operand_layout),
                    sums: T.Fragment((WEIGHT_ROWS, shape.rows), forward_fn=sum_layout),
                }
            )
            place, rank = block // splits, block % splits
            begin, end = (T.ceildiv(width, across) * part // splits for part in (rank, rank + 1))
            group_tiles, per_group = T.alloc_var("int32"), T.alloc_var("int32")
            group, first = T.alloc_var("int32"), T.alloc_var("int32")
            group_tiles = T.truncdiv(tiles_down, groups)
            per_group = T.ceildiv(group_tiles, TILES_DOWN)
            group = T.truncdiv(place, per_group)
            first = group * group_tiles + (place - group * per_group) * TILES_DOWN
            for i in T.serial(TILES_DOWN):
                for j in T.Parallel(SCALE_COLUMNS):
                    if j < width and first + i < tiles_down:
                        stored_scales[i * SCALE_COLUMNS + j] = scales[first + i, j]
            for step in T.Pipelined(end - begin, num_stages=shape.stages):
                T.copy(tiles[first, (begin + step) * across, 0, 0], stored)
                T.copy(x[column * shape.rows, group * width * TILE + (begin + step) * shape.columns], rows)
                T.call_extern(
                    "handle",
                    f"thalweg::weight_operand<{across}>",
                    T.access_ptr(operand, "w"),
                    T.address_of(stored[0, 0, 0, 0]),
                    T.address_of(stored_scales[0]),
                    SCALE_COLUMNS,
                    (begin + step) * across,
                    width - 1,
                    T.get_thread_binding(),
                )
                T.gemm(operand, rows, sums, transpose_B=True, policy=T.GemmWarpPolicy.FullRow, clear_accum=step == 0)
            if splits == 1:
                T.call_extern(
                    "handle",
                    f"thalweg::write_transposed<{shape.rows}>",
                    T.access_ptr(sums, "r"),
                    T.access_ptr(staging, "w"),
                    T.address_of(out[0, 0]),
                    n,
                    tiles_down * TILE,
                    column * shape.rows,
                    first * TILE,
                    (group + 1) * group_tiles * TILE,
                    T.float32(FACTOR),
                    T.get_thread_binding(),
                )
            else:
                T.call_extern(
                    "handle",
                    f"thalweg::write_sum_of_splits<{shape.rows}, {splits}, __nv_bfloat16>",
                    T.access_ptr(sums, "r"),
                    T.access_ptr(staging, "w"),
                    T.address_of(out[0, 0]),
                    n,
                    tiles_down * TILE,
                    column * shape.rows,
                    first * TILE,
                    (group + 1) * group_tiles * TILE,
                    T.float32(FACTOR),
                    rank,
                    T.get_thread_binding(),
                )

    return compiled(fp8_tiles, architecture)
