"""Linears of MXFP8 rows by packed FP8 weights, on Hopper, whose tensor cores know no such scales."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import torch
from torch import Tensor

from thalweg.kernels.native_formats import Mxfp8Rows
from thalweg.kernels.reference.packed_linear import Fp8Weight, check_fp8_linear, pack_fp8_weight
from thalweg.kernels.sm90.declared import implementation
from thalweg.kernels.sm90.fp8_rows import fp8_rows_kernel
from thalweg.kernels.sm90.fp8_stream import MOST_ROWS, StreamShape, fp8_stream_kernel, stream_shape
from thalweg.kernels.sm90.fp8_tiles import SCALE_COLUMNS, TILES_DOWN, fp8_tiles_kernel, unpack_kernel
from thalweg.kernels.sm90.row_parts import check_contiguous
from thalweg.kernels.sm90.row_products import TILE, Sharing, groups_per_load, invariant_sharing, sharing
from thalweg.kernels.sm90.tensors import check_device, processors
from thalweg.kernels.sm90.tile_shapes import Cost, TileShape, fastest_shape

FEW_ROWS = 32
"""Up to which no row is converted first."""
STREAMS = ((range(9, 17), 40_000), (range(17, MOST_ROWS + 1), 10_000))
"""Numbers of rows, and from how many tiles on a weight streams through shared memory for them. For few rows it goes
straight to registers otherwise."""
COSTS = (
    Cost(TileShape(64, 128, 4), 0.75),
    Cost(TileShape(128, 128, 3), 0.95),
    Cost(TileShape(256, 128, 2), 1.39),
)


def fp8_linear(x: Mxfp8Rows, weight: Fp8Weight) -> Tensor:
    """As the reference."""
    return _linear(x, weight, 1)


def grouped_fp8_linear(x: Mxfp8Rows, weight: Fp8Weight, groups: int) -> Tensor:
    """As the reference."""
    return _linear(x, weight, groups)


def invariant_fp8_linear(x: Mxfp8Rows, weight: Fp8Weight) -> Tensor:
    """As the reference; sums are formed in one order, whatever the number of rows."""
    return _linear(x, weight, 1, is_invariant=True)


def invariant_grouped_fp8_linear(x: Mxfp8Rows, weight: Fp8Weight, groups: int) -> Tensor:
    """As invariant_fp8_linear."""
    return _linear(x, weight, groups, is_invariant=True)


def _linear(x: Mxfp8Rows, weight: Fp8Weight, groups: int, is_invariant: bool = False) -> Tensor:
    check_fp8_linear(x, weight, groups)
    codes, scales = x
    check_device(codes=codes, scales=scales, tiles=weight.tiles)
    check_contiguous(codes=codes, scales=scales)
    n, (tiles_down, width, _) = codes.shape[0], weight.tiles.shape
    out = torch.empty(n, weight.out_features, dtype=torch.bfloat16, device=codes.device)
    if out.numel() == 0:
        return out
    with torch.cuda.device(codes.device):
        if is_invariant:
            _few_rows(x, weight, out, groups, invariant_sharing(n))
        elif streams(n, tiles_down * width):
            _some_rows(x, weight, out, groups)
        elif n <= FEW_ROWS or width > SCALE_COLUMNS:
            _few_rows(x, weight, out, groups, sharing(n, tiles_down, width, processors(codes.device)))
        else:
            _many_rows(x, weight, out, groups)
    return out


def _few_rows(x: Mxfp8Rows, weight: Fp8Weight, out: Tensor, groups: int, shared_out: Sharing) -> None:
    kernel = fp8_rows_kernel(shared_out, groups_per_load(weight.tiles.shape[1]))
    kernel(*x, weight.tiles, weight.scales, out, groups)


def streams(num_rows: int, num_tiles: int) -> bool:
    """Whether a weight of so many tiles streams through shared memory for num_rows."""
    return any(num_rows in rows and num_tiles >= least for rows, least in STREAMS)


def _some_rows(x: Mxfp8Rows, weight: Fp8Weight, out: Tensor, groups: int) -> None:
    shape = stream_shape(out.shape[0], _places(weight, groups), weight.tiles.shape[1], processors(out.device))
    fp8_stream_kernel(shape)(*x, weight.tiles, weight.scales, out, groups)


def _places(weight: Fp8Weight, groups: int) -> int:
    """Blocks along the rows of a weight."""
    return groups * -(-weight.tiles.shape[0] // (groups * TILES_DOWN))


def _many_rows(x: Mxfp8Rows, weight: Fp8Weight, out: Tensor, groups: int) -> None:
    tiles_down, width, _ = weight.tiles.shape
    shape = fastest_shape(COSTS, out.shape[0], _places(weight, groups), width * TILE, processors(out.device))
    rows = torch.empty(x.codes.shape, dtype=torch.bfloat16, device=out.device)
    unpack_kernel()(*x, rows)
    fp8_tiles_kernel(shape)(rows, weight.tiles.view(tiles_down, width, 8, 128), weight.scales, out, groups)


IMPLEMENTATIONS = (
    implementation(pack_fp8_weight),
    implementation(fp8_linear, batch_invariant=False),
    implementation(invariant_fp8_linear, "fp8_linear", priority=-1),
    implementation(grouped_fp8_linear, batch_invariant=False),
    implementation(invariant_grouped_fp8_linear, "grouped_fp8_linear", priority=-1),
)

COMPILE_EXAMPLES: dict[str, Callable[[str], Any]] = {
    "fp8_linear 8 rows": lambda architecture: fp8_rows_kernel(sharing(8, 56, 160, 132), 4, architecture),
    "fp8_linear 32 rows": lambda architecture: fp8_stream_kernel(StreamShape(32, 4), architecture),
    "fp8_linear unpacking": unpack_kernel,
    "fp8_linear 8192 rows": lambda architecture: fp8_tiles_kernel(COSTS[2].shape, architecture),
}

HOPPER_KERNELS = frozenset({"fp8_linear 32 rows"})
"""Those whose bodies use instructions that only sm_90a has."""
