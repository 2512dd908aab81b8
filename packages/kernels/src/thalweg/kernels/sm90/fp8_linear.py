"""Linears of MXFP8 rows by packed FP8 weights, on Hopper, whose tensor cores know no such scales."""
# Without postponed annotations: those of the kernel are its arguments' types to TileLang.
# mypy: disable-error-code="valid-type, name-defined, untyped-decorator"

import functools
from collections.abc import Callable
from typing import Any

import torch
from torch import Tensor

from thalweg.kernels.native_formats import Mxfp8Rows
from thalweg.kernels.reference.packed_linear import TILE_BYTES, Fp8Weight, check_groups, check_rows, pack_fp8_weight
from thalweg.kernels.registry import Implementation
from thalweg.kernels.sm90.library import ARCHITECTURE, compiled, tilelang
from thalweg.kernels.sm90.row_parts import check_contiguous
from thalweg.kernels.sm90.row_products import BLOCK_ROWS, TILE, Sharing, groups_per_load, sharing, source
from thalweg.kernels.sm90.tensors import check_device


@functools.cache
def fp8_rows_kernel(shared_out: Sharing, groups_at_once: int, architecture: str = ARCHITECTURE) -> Any:
    """The compiled kernel for few rows. groups_at_once: groups of 32 columns per load, which divide the width."""
    T = tilelang().language
    n, tiles_down, width, x_columns = T.dynamic("n"), T.dynamic("tiles_down"), T.dynamic("width"), T.dynamic("K")
    s = shared_out
    name = f"thalweg::fp8_rows<{s.blocks}, {s.down}, {s.across}, {s.splits}, {groups_at_once}>"
    text = source("row_products.cuh", "fp8_rows.cuh")

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


def fp8_linear(x: Mxfp8Rows, weight: Fp8Weight) -> Tensor:
    """As the reference, in one launch."""
    check_rows(x, weight.in_features)
    return _linear(x, weight, 1)


def grouped_fp8_linear(x: Mxfp8Rows, weight: Fp8Weight, groups: int) -> Tensor:
    """As the reference, in one launch."""
    check_groups(weight, groups)
    check_rows(x, groups * weight.in_features)
    return _linear(x, weight, groups)


def _linear(x: Mxfp8Rows, weight: Fp8Weight, groups: int) -> Tensor:
    codes, scales = x
    check_device(codes=codes, scales=scales, tiles=weight.tiles)
    check_contiguous(codes=codes, scales=scales)
    n, (tiles_down, width, _) = codes.shape[0], weight.tiles.shape
    out = torch.empty(n, weight.out_features, dtype=torch.bfloat16, device=codes.device)
    if out.numel() == 0:
        return out
    processors = torch.cuda.get_device_properties(codes.device).multi_processor_count
    kernel = fp8_rows_kernel(sharing(n, tiles_down, width, processors), groups_per_load(width))
    with torch.cuda.device(codes.device):
        kernel(codes, scales, weight.tiles, weight.scales, out, groups)
    return out


def _implementation(function: Callable[..., Any]) -> Implementation:
    return Implementation(
        op=function.__name__,
        backend="sm90",
        provider="tilelang",
        function=function,
        deterministic=True,
        graph_safe=True,
    )


IMPLEMENTATIONS = tuple(_implementation(function) for function in (pack_fp8_weight, fp8_linear, grouped_fp8_linear))

COMPILE_EXAMPLES: dict[str, Callable[[str], Any]] = {
    "fp8_linear 8 rows": lambda architecture: fp8_rows_kernel(sharing(8, 56, 160, 132), 4, architecture),
    "grouped_fp8_linear 64 rows": lambda architecture: fp8_rows_kernel(sharing(64, 256, 128, 132), 4, architecture),
}
