"""The kernel of bfloat16 linears that are large, in rows or in weights, on Hopper."""
# Without postponed annotations: those of the kernel are its arguments' types to TileLang.
# mypy: disable-error-code="valid-type, name-defined, untyped-decorator"

import functools
from typing import Any

import torch

from thalweg.kernels.sm90.bf16_rows import NAMES
from thalweg.kernels.sm90.cuda_source import cuda_source
from thalweg.kernels.sm90.library import ARCHITECTURE, compiled, tilelang
from thalweg.kernels.sm90.tile_shapes import THREADS, WEIGHT_ROWS, TileShape, sum_layout


@functools.cache
def bf16_tiles_kernel(shape: TileShape, out_dtype: torch.dtype, architecture: str = ARCHITECTURE) -> Any:
    """The compiled kernel: blocks of 128 rows of the weight. float32 results have shape.rows <= 128."""
    T = tilelang().language
    n, width, depth = T.dynamic("n"), T.dynamic("width"), T.dynamic("depth")
    is_float, splits = out_dtype == torch.float32, shape.splits
    out_name, c_name = NAMES[out_dtype]
    text = cuda_source("tile_products.cuh")

    @T.prim_func
    def bf16_tiles(
        x: T.Tensor((n, depth), "bfloat16"),
        weight: T.Tensor((width, depth), "bfloat16"),
        out: T.Tensor((n, width), out_name),
    ) -> None:
        with T.Kernel(
            T.ceildiv(n, shape.rows) * splits,
            T.ceildiv(width, WEIGHT_ROWS),
            threads=THREADS,
            cluster_dims=(splits, 1, 1),
        ) as (block, place):
            T.import_source(text)
            weights = T.alloc_shared((WEIGHT_ROWS, shape.columns), "bfloat16")
            rows = T.alloc_shared((shape.rows, shape.columns), "bfloat16")
            staging = T.alloc_shared((shape.staged_floats,), "float32")
            sums = T.alloc_fragment((WEIGHT_ROWS, shape.rows), "float32")
            parts = T.alloc_fragment((WEIGHT_ROWS, shape.rows), "float32") if is_float else sums
            layout = T.Fragment((WEIGHT_ROWS, shape.rows), forward_fn=sum_layout)
            T.annotate_layout({sums: layout, parts: layout})
            column, rank = block // splits, block % splits
            begin, end = (T.ceildiv(depth, shape.columns) * part // splits for part in (rank, rank + 1))
            for step in T.Pipelined(end - begin, num_stages=shape.stages):
                T.copy(weight[place * WEIGHT_ROWS, (begin + step) * shape.columns], weights)
                T.copy(x[column * shape.rows, (begin + step) * shape.columns], rows)
                if is_float:
                    T.gemm(weights, rows, parts, transpose_B=True, policy=T.GemmWarpPolicy.FullRow, clear_accum=True)
                    T.call_extern(
                        "handle",
                        f"thalweg::add_parts<{shape.rows}>",
                        T.access_ptr(sums, "rw"),
                        T.access_ptr(parts, "r"),
                        step == 0,
                    )
                else:
                    T.gemm(
                        weights, rows, sums, transpose_B=True, policy=T.GemmWarpPolicy.FullRow, clear_accum=step == 0
                    )
            if splits > 1:
                T.call_extern(
                    "handle",
                    f"thalweg::write_sum_of_splits<{shape.rows}, {splits}, {c_name}>",
                    T.access_ptr(sums, "r"),
                    T.access_ptr(staging, "w"),
                    T.address_of(out[0, 0]),
                    n,
                    width,
                    column * shape.rows,
                    place * WEIGHT_ROWS,
                    width,
                    T.float32(1.0),
                    rank,
                    T.get_thread_binding(),
                )
            elif is_float:
                T.call_extern(
                    "handle",
                    f"thalweg::write_transposed_float<{shape.rows}>",
                    T.access_ptr(sums, "r"),
                    T.address_of(out[0, 0]),
                    n,
                    width,
                    column * shape.rows,
                    place * WEIGHT_ROWS,
                    T.get_thread_binding(),
                )
            else:
                T.call_extern(
                    "handle",
                    f"thalweg::write_transposed<{shape.rows}>",
                    T.access_ptr(sums, "r"),
                    T.access_ptr(staging, "w"),
                    T.address_of(out[0, 0]),
                    n,
                    width,
                    column * shape.rows,
                    place * WEIGHT_ROWS,
                    width,
                    T.float32(1.0),
                    T.get_thread_binding(),
                )

    return compiled(bf16_tiles, architecture)
