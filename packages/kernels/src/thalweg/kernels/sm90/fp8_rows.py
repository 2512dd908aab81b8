"""The kernel of FP8 linears for few rows on Hopper, where bytes of the weight go from memory to registers."""
# Without postponed annotations: those of the kernel are its arguments' types to TileLang.
# mypy: disable-error-code="valid-type, name-defined, untyped-decorator"

import functools
from typing import Any

from thalweg.kernels.reference.packed_linear import TILE_BYTES
from thalweg.kernels.sm90.cuda_source import cuda_source
from thalweg.kernels.sm90.library import ARCHITECTURE, compiled, tilelang
from thalweg.kernels.sm90.row_products import BLOCK_ROWS, TILE, Sharing


@functools.cache
def fp8_rows_kernel(shared_out: Sharing, groups_at_once: int, architecture: str = ARCHITECTURE) -> Any:
    """The compiled kernel for few rows. groups_at_once: groups of 32 columns per load, which divide the width."""
    T = tilelang().language
    n, tiles_down, width, x_columns = T.dynamic("n"), T.dynamic("tiles_down"), T.dynamic("width"), T.dynamic("K")
    s = shared_out
    name = f"thalweg::fp8_rows<{s.blocks}, {s.down}, {s.across}, {s.splits}, {groups_at_once}>"
    text = cuda_source("fp8_rows.cuh")

    @T.prim_func
    def fp8_rows(
        codes: T.Tensor((n, x_columns), "uint8"),
        scales: T.Tensor((n, x_columns // TILE), "uint8"),
        tiles: T.Tensor((tiles_down, width, TILE_BYTES), "uint8"),
        tile_scales: T.Tensor((tiles_down, width), "uint8"),
        out: T.Tensor((n, tiles_down * TILE), "bfloat16"),
        groups: T.int32,
    ) -> None:
        with T.Kernel(
            T.ceildiv(tiles_down, s.down) * s.splits,
            T.ceildiv(n, BLOCK_ROWS * s.blocks),
            threads=s.threads,
            cluster_dims=(s.splits, 1, 1),
        ) as (place, column):
            T.import_source(text)
            T.annotate_min_blocks_per_sm(s.resident)
            partials = T.alloc_shared((s.partial_floats,), "float32")
            T.call_extern(
                "handle",
                name,
                T.address_of(codes[0, 0]),
                T.address_of(scales[0, 0]),
                T.address_of(tiles[0, 0, 0]),
                T.address_of(tile_scales[0, 0]),
                T.address_of(out[0, 0]),
                T.address_of(partials[0]),
                n,
                width,
                tiles_down,
                groups,
                place // s.splits,
                place % s.splits,
                column,
            )

    return compiled(fp8_rows, architecture)
