"""The one matrix product of the reference: the bits of a row depend on nothing but that row.

A library GEMM picks its inner kernel by the number of rows, so plain products of 1 and of 40 rows disagree. Here the
result is defined by tiles of 16 rows, zero-filled at the end. Tiles of another height are used only where a probe of
the same shape shows that the library gives a row the same bits in them.
"""

from __future__ import annotations

import functools
from collections.abc import Callable, Sequence
from typing import Any

import torch
from torch import Tensor

from thalweg.interfaces import ConfigError
from thalweg.kernels.reference.numerics import carried

TILE_ROWS = 16
LOW_TILES = (4, 8)
TALL_TILE = 64
PROBE_LIMIT = 1 << 22


def matmul(x: Tensor, weight: Tensor) -> Tensor:
    """x [n, K] times the transpose of weight [N, K] -> [n, N], in the dtype of x. Differentiable in both."""
    _check(x, weight)
    return _product(carried(x), carried(weight, "weight")).to(x.dtype)


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
    used = [(count, weight) for count, weight in zip(counts, weights, strict=True) if count]
    for _, weight in used:
        _check(x, weight)
        if weight.shape != used[0][1].shape:
            raise ConfigError(
                f"weights have shapes {list(used[0][1].shape)} and {list(weight.shape)}; all must have one shape"
            )
    if not used:
        return x.new_empty(0, weights[0].shape[0])
    value = carried(x)
    counts = [count for count, _ in used]
    operands = [carried(weight, "weight") for _, weight in used]
    if torch.is_grad_enabled() and (x.requires_grad or any(weight.requires_grad for weight in operands)):
        rows = value.split_with_sizes(counts)
        product = torch.cat([_product(part, weight) for part, weight in zip(rows, operands, strict=True)])
    else:
        product = _grouped_products(value, counts, operands)
    return product.to(x.dtype)


def _grouped_products(x: Tensor, counts: Sequence[int], weights: Sequence[Tensor]) -> Tensor:
    """Every group in its own tiles of one padded buffer: a group then costs one call."""
    depth, width = x.shape[1], weights[0].shape[0]
    places: list[int] = []
    spans: list[tuple[int, int, int, int]] = []
    end = 0
    for group, count in enumerate(counts):
        height = _height(count, depth, width, x.dtype, x.device)
        tiles = -(-count // height)
        places.extend(range(end, end + count))
        spans.append((group, end, tiles, height))
        end += tiles * height
    place = torch.tensor(places, dtype=torch.int64, device=x.device)
    padded = x.new_zeros(end, depth).index_copy_(0, place, x)
    product = x.new_empty(end, width)
    for group, begin, tiles, height in spans:
        rows = slice(begin, begin + tiles * height)
        torch.bmm(
            padded[rows].view(tiles, height, depth),
            weights[group].t().expand(tiles, depth, width),
            out=product[rows].view(tiles, height, width),
        )
    return product.index_select(0, place)


def _check(x: Tensor, weight: Tensor) -> None:
    if x.dim() != 2 or weight.dim() != 2 or x.shape[1] != weight.shape[1]:
        raise ConfigError(
            f"matmul got x {list(x.shape)} and weight {list(weight.shape)}; x [n, K] and weight [N, K] are expected"
        )
    if x.dtype != weight.dtype:
        raise ConfigError(f"matmul got x of {x.dtype} and weight of {weight.dtype}; they must have one dtype")


def _product(x: Tensor, weight: Tensor) -> Tensor:
    if torch.is_grad_enabled() and (x.requires_grad or weight.requires_grad):
        result: Tensor = _DifferentiableProduct.apply(x, weight)  # type: ignore[no-untyped-call]
        return result
    return row_products(x, weight)


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
    """The product itself, without checks and gradients."""
    rows, depth = x.shape
    width = weight.shape[0]
    if rows == 0 or width == 0 or depth == 0:
        return x.new_zeros(rows, width)
    tall = rows // TALL_TILE * TALL_TILE
    if tall and _agrees(TALL_TILE, depth, width, x.dtype, x.device):
        head = _tiles(x[:tall], weight, TALL_TILE)
        return head if tall == rows else torch.cat((head, row_products(x[tall:], weight)))
    return _tiles(x, weight, _height(rows, depth, width, x.dtype, x.device))


def batched_row_products(x: Tensor, weight: Tensor) -> Tensor:
    """x [b, n, K] times the transpose of weight [b, N, K], one by one -> [b, n, N], with the bits of row_products."""
    batch, rows, depth = x.shape
    width = weight.shape[1]
    height = _height(rows, depth, width, x.dtype, x.device)
    count = -(-rows // height)
    if count * height != rows:
        x = torch.nn.functional.pad(x, (0, 0, 0, count * height - rows))
    tiles = x.reshape(batch * count, height, depth)
    if count > 1:
        weight = weight.unsqueeze(1).expand(batch, count, width, depth).reshape(batch * count, width, depth)
    product = torch.bmm(tiles, weight.transpose(1, 2)).view(batch, count * height, width)
    return product[:, :rows]


def _height(rows: int, depth: int, width: int, dtype: torch.dtype, device: torch.device) -> int:
    """The lowest tile that holds the rows and keeps their bits."""
    for height in LOW_TILES:
        if rows <= height and _agrees(height, depth, width, dtype, device):
            return height
    return TILE_ROWS


def _tiles(x: Tensor, weight: Tensor, height: int) -> Tensor:
    """The product in tiles of one height; the last one is filled with zero rows."""
    rows, depth = x.shape
    padding = -rows % height
    if padding:
        x = torch.nn.functional.pad(x, (0, 0, 0, padding))
    tiles = x.reshape(-1, height, depth)
    product = torch.bmm(tiles, weight.t().expand(tiles.shape[0], depth, weight.shape[0]))
    product = product.view(-1, weight.shape[0])
    return product[:rows] if padding else product


@functools.cache
def _agrees(height: int, depth: int, width: int, dtype: torch.dtype, device: torch.device) -> bool:
    """Whether tiles of this height give random rows the bits that tiles of 16 rows give them; no for huge weights."""
    if depth * width > PROBE_LIMIT:
        return False
    generator = torch.Generator().manual_seed(0)
    with torch.no_grad():
        x = torch.randn(TALL_TILE, depth, dtype=torch.float64, generator=generator).to(device, dtype)
        weight = torch.randn(width, depth, dtype=torch.float64, generator=generator).to(device, dtype)
        return torch.equal(_tiles(x, weight, height), _tiles(x, weight, TILE_ROWS))


OPS: dict[str, Callable[..., Any]] = {"matmul": matmul, "grouped_matmul": grouped_matmul}
