"""The one matrix product of the reference: the bits of a row depend on nothing but that row.

A library GEMM picks its inner kernel by the number of rows, so plain products of 1 and of 40 rows disagree. Here every
product is made of tiles of TILE_ROWS rows, the last one filled with zeros.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Sequence
from typing import Any

import torch
from torch import Tensor

from thalweg.interfaces import ConfigError
from thalweg.kernels.reference.numerics import carried

TILE_ROWS = 8


def matmul(x: Tensor, weight: Tensor) -> Tensor:
    """x [n, K] times the transpose of weight [N, K] -> [n, N], in the dtype of x. Differentiable in both."""
    if x.dim() != 2 or weight.dim() != 2 or x.shape[1] != weight.shape[1]:
        raise ConfigError(
            f"matmul got x {list(x.shape)} and weight {list(weight.shape)}; x [n, K] and weight [N, K] are expected"
        )
    if x.dtype != weight.dtype:
        raise ConfigError(f"matmul got x of {x.dtype} and weight of {weight.dtype}; they must have one dtype")
    value, operand = carried(x), carried(weight, "weight")
    if torch.is_grad_enabled() and (value.requires_grad or operand.requires_grad):
        product: Tensor = _DifferentiableProduct.apply(value, operand)  # type: ignore[no-untyped-call]
    else:
        product = row_products(value, operand)
    return product.type_as(x)


def grouped_matmul(x: Tensor, counts: Sequence[int], weights: Sequence[Tensor]) -> Tensor:
    """Rows of x [n, K] by the weight [N, K] of their group -> [n, N]; rows of a group lie together, in group order.

    counts: rows of each group, n in total; weights: one per group. A row has the bits that matmul gives it.
    """
    if len(counts) != len(weights) or sum(counts) != x.shape[0]:
        raise ConfigError(
            f"counts has {len(counts)} groups of {sum(counts)} rows in all; "
            f"there are {len(weights)} weights and {x.shape[0]} rows"
        )
    if not weights:
        raise ConfigError("weights is empty; at least one group is needed")
    for weight in weights:
        if weight.shape != weights[0].shape:
            raise ConfigError(
                f"weights have shapes {list(weights[0].shape)} and {list(weight.shape)}; all must have one shape"
            )
    rows = x.split_with_sizes(list(counts))
    products = [matmul(part, weight) for part, weight in zip(rows, weights, strict=True) if part.shape[0]]
    return torch.cat(products) if products else matmul(x, weights[0])


class _DifferentiableProduct(torch.autograd.Function):
    """The tiled product with untiled gradients: autograd would give every tile its own copy of the weight's."""

    @staticmethod
    def forward(ctx: Any, x: Tensor, weight: Tensor) -> Tensor:
        ctx.save_for_backward(x, weight)
        return row_products(x, weight)

    @staticmethod
    def backward(ctx: Any, gradient: Tensor) -> tuple[Tensor | None, Tensor | None]:
        x, weight = ctx.saved_tensors
        to_x = gradient @ weight if ctx.needs_input_grad[0] else None
        to_weight = gradient.t() @ x if ctx.needs_input_grad[1] else None
        return to_x, to_weight


def row_products(x: Tensor, weight: Tensor) -> Tensor:
    """matmul without checks and gradients."""
    rows, depth = x.shape
    width = weight.shape[0]
    if width == 1:  # a library takes this for matrix times vector, where the bits depend on a row's place in its tile
        return row_products(x, weight.repeat(2, 1))[:, :1]
    tiles = _tiles(x)
    product = torch.bmm(tiles, weight.t().expand(tiles.shape[0], depth, width))
    return product.view(tiles.shape[0] * TILE_ROWS, width)[:rows]


def batched_row_products(x: Tensor, weight: Tensor) -> Tensor:
    """x [b, n, K] times the transpose of weight [b, N, K], one by one -> [b, n, N], N > 1, with the bits of
    row_products.
    """
    batch, rows, _ = x.shape
    tiles = _tiles(x)
    if rows > TILE_ROWS:
        weight = weight.repeat_interleave(tiles.shape[0] // batch, 0)
    product = torch.bmm(tiles, weight.transpose(1, 2))
    return product.view(batch, -1, weight.shape[1])[:, :rows]


def _tiles(x: Tensor) -> Tensor:
    """Rows of x [n, K] or [b, n, K] in tiles [t, TILE_ROWS, K], filled with zero rows; no tile spans two b."""
    *batch, rows, depth = x.shape
    missing = -rows % TILE_ROWS
    filled = torch.nn.functional.pad(x, (0, 0, 0, missing)) if missing else x
    return filled.reshape(math.prod(batch) * (rows + missing) // TILE_ROWS, TILE_ROWS, depth)


OPS: dict[str, Callable[..., Any]] = {"matmul": matmul, "grouped_matmul": grouped_matmul}
