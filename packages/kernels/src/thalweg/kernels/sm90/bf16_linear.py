"""Linears of bfloat16 rows by bfloat16 weights, on Hopper."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import torch
from torch import Tensor

from thalweg.interfaces import ConfigError
from thalweg.kernels.reference.packed_linear import check_bf16_linear
from thalweg.kernels.sm90.bf16_rows import bf16_rows_kernel
from thalweg.kernels.sm90.bf16_tiles import bf16_tiles_kernel
from thalweg.kernels.sm90.declared import implementation
from thalweg.kernels.sm90.row_parts import check_contiguous
from thalweg.kernels.sm90.row_products import TILE, Sharing, groups_per_load, invariant_sharing, sharing
from thalweg.kernels.sm90.tensors import aligned_rows, check_device, processors, span
from thalweg.kernels.sm90.tile_shapes import WEIGHT_ROWS, Cost, TileShape, fastest_shape

VECTOR = 8
"""Elements that are loaded at once: rows must begin at a multiple of them."""


FEW_ROWS, SMALL_WEIGHT_ROWS = 32, 4096
"""Up to which weights go from memory to registers."""
COSTS = {
    torch.bfloat16: (
        Cost(TileShape(16, 128, 4), 0.9),
        Cost(TileShape(64, 128, 4), 0.95),
        Cost(TileShape(128, 128, 3), 1.2),
        Cost(TileShape(256, 64, 4), 0.75),
    ),
    torch.float32: (
        Cost(TileShape(16, 128, 4), 0.9),
        Cost(TileShape(64, 128, 4), 0.95),
        Cost(TileShape(128, 128, 3), 1.2),
    ),
}


def bf16_linear(x: Tensor, weight: Tensor, out_dtype: torch.dtype = torch.bfloat16) -> Tensor:
    """As the reference. Rows of x may lie apart; K is a multiple of 32."""
    return _linear(x, weight, out_dtype)


def invariant_bf16_linear(x: Tensor, weight: Tensor, out_dtype: torch.dtype = torch.bfloat16) -> Tensor:
    """As bf16_linear; sums are formed in one order, whatever the number of rows."""
    return _linear(x, weight, out_dtype, is_invariant=True)


def _linear(x: Tensor, weight: Tensor, out_dtype: torch.dtype, is_invariant: bool = False) -> Tensor:
    check_bf16_linear(x, weight, out_dtype)
    check_device(x=x, weight=weight)
    check_contiguous(weight=weight)
    (n, depth), width = x.shape, weight.shape[0]
    if depth == 0 or depth % TILE:
        raise ConfigError(f"x has {depth} columns; a positive multiple of {TILE} is required")
    out = torch.empty(n, width, dtype=out_dtype, device=x.device)
    if out.numel() == 0:
        return out
    x = aligned_rows(x, VECTOR)
    with torch.cuda.device(x.device):
        if is_invariant:
            _few_rows(x, weight, out, invariant_sharing(n))
        elif (n <= FEW_ROWS and width <= SMALL_WEIGHT_ROWS) or width % VECTOR:
            _few_rows(x, weight, out, sharing(n, -(-width // TILE), depth // TILE, processors(x.device)))
        else:
            places = -(-width // WEIGHT_ROWS)
            shape = fastest_shape(COSTS[out_dtype], n, places, depth, processors(x.device))
            bf16_tiles_kernel(shape, out_dtype)(x.contiguous(), weight, out)
    return out


def _few_rows(x: Tensor, weight: Tensor, out: Tensor, shared_out: Sharing) -> None:
    kernel = bf16_rows_kernel(shared_out, groups_per_load(x.shape[1] // TILE), out.dtype)
    kernel(span(x), weight, out, x.stride(0))


IMPLEMENTATIONS = (
    implementation(bf16_linear, batch_invariant=False),
    implementation(invariant_bf16_linear, "bf16_linear", priority=-1),
)

COMPILE_EXAMPLES: dict[str, Callable[[str], Any]] = {
    "bf16_linear 384 of 5120": lambda architecture: bf16_rows_kernel(
        sharing(8, 12, 160, 132), 4, torch.float32, architecture
    ),
    "bf16_linear head": lambda architecture: bf16_tiles_kernel(
        COSTS[torch.float32][1].shape, torch.float32, architecture
    ),
}
