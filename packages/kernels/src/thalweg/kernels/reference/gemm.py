"""The one matrix product of the reference: the bits of a row depend on nothing but that row.

A library GEMM picks its inner kernel by the number of rows, so rows are processed in tiles of a constant height.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import torch
from torch import Tensor

from thalweg.interfaces import ConfigError
from thalweg.kernels.reference.numerics import carried

TILE_ROWS = 16


def matmul(x: Tensor, weight: Tensor) -> Tensor:
    """x [n, K] times the transpose of weight [N, K] -> [n, N], in the dtype of x."""
    if x.dim() != 2 or weight.dim() != 2 or x.shape[1] != weight.shape[1]:
        raise ConfigError(
            f"matmul got x {list(x.shape)} and weight {list(weight.shape)}; x [n, K] and weight [N, K] are expected"
        )
    if x.dtype != weight.dtype:
        raise ConfigError(f"matmul got x of {x.dtype} and weight of {weight.dtype}; they must have one dtype")
    product = _tiled(carried(x), carried(weight, "weight"))
    return product.to(x.dtype)


def _tiled(x: Tensor, weight: Tensor) -> Tensor:
    rows, depth = x.shape
    width = weight.shape[0]
    if rows == 0:
        return x.new_empty(0, width)
    padding = -rows % TILE_ROWS
    if padding:
        x = torch.nn.functional.pad(x, (0, 0, 0, padding))
    tiles = x.reshape(-1, TILE_ROWS, depth)
    product = torch.bmm(tiles, weight.t().expand(tiles.shape[0], depth, width))
    return product.view(-1, width)[:rows]


OPS: dict[str, Callable[..., Any]] = {"matmul": matmul}
