"""Dense linears on weights as checkpoints store them, and the choice of experts, in one op each.

An FP8 weight is packed once, in tiles of 32 x 32, each of which has one scale. A tile lies as tensor cores read it: the
32 lanes of a warp take 16 neighbouring bytes each, and these are 8 columns of two rows. The bytes of an activation's
row need no other order for that.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from typing import Any

import torch
from torch import Tensor

from thalweg.interfaces import ConfigError
from thalweg.kernels.native_formats import Mxfp8Rows
from thalweg.kernels.reference.gemm import row_products
from thalweg.kernels.reference.moe import gate_scores, route
from thalweg.kernels.reference.numerics import check_count, check_shape, check_tensor
from thalweg.kernels.reference.quant import WEIGHT_TILE, dequantize_fp8_weight, dequantize_mxfp8

TILE_BYTES = WEIGHT_TILE * WEIGHT_TILE


@dataclass(frozen=True, slots=True)
class Fp8Weight:
    """An FP8 weight [o, i] with a scale per 32 x 32 tile, in the layout of this package's kernels."""

    tiles: Tensor
    """uint8 [o / 32, i / 32, 1024] e4m3; byte 512 a + 64 g + 16 t + 8 b + e of a tile is its row 16 a + 8 b + g, column
    8 t + e."""
    scales: Tensor
    """uint8 [o / 32, i / 32] ue8m0"""

    @property
    def out_features(self) -> int:
        """Rows o."""
        return self.tiles.shape[0] * WEIGHT_TILE

    @property
    def in_features(self) -> int:
        """Columns i."""
        return self.tiles.shape[1] * WEIGHT_TILE


def pack_fp8_weight(codes: Tensor, scales: Tensor) -> Fp8Weight:
    """The weight of e4m3 codes uint8 [o, i] and ue8m0 scales uint8 [o / 32, i / 32]; o and i are multiples of 32.

    Runs where the codes are; the result takes their size once more. The scales are kept, not copied.
    """
    check_shape("codes", codes, ("o", "i"))
    rows, columns = codes.shape
    if rows % WEIGHT_TILE or columns % WEIGHT_TILE:
        raise ConfigError(f"codes have shape {list(codes.shape)}; multiples of {WEIGHT_TILE} are required")
    check_shape("scales", scales, (rows // WEIGHT_TILE, columns // WEIGHT_TILE))
    for name, tensor in (("codes", codes), ("scales", scales)):
        if tensor.dtype != torch.uint8:
            raise ConfigError(f"{name} have dtype {tensor.dtype}; uint8 is required")
    parts = codes.reshape(rows // WEIGHT_TILE, 2, 2, 8, columns // WEIGHT_TILE, 4, 8)
    tiles = parts.permute(0, 4, 1, 3, 5, 2, 6).reshape(*scales.shape, TILE_BYTES)
    return Fp8Weight(tiles.contiguous(), scales.contiguous())


def unpack_fp8_weight(weight: Fp8Weight) -> tuple[Tensor, Tensor]:
    """The codes [o, i] and scales [o / 32, i / 32] that pack_fp8_weight got."""
    tiles_down, tiles_across, _ = weight.tiles.shape
    parts = weight.tiles.view(tiles_down, tiles_across, 2, 8, 4, 2, 8).permute(0, 2, 5, 3, 1, 4, 6)
    return parts.reshape(weight.out_features, weight.in_features), weight.scales


def fp8_linear(x: Mxfp8Rows, weight: Fp8Weight) -> Tensor:
    """bfloat16 [n, o]: rows x [n, i] times the transpose of weight [o, i], summed in float32 and rounded once."""
    check_fp8_linear(x, weight)
    return row_products(_values(x), _weight_values(weight)).bfloat16()


def grouped_fp8_linear(x: Mxfp8Rows, weight: Fp8Weight, groups: int) -> Tensor:
    """bfloat16 [n, g * o]: part j of rows x [n, g * K] by part j of weight [g * o, K], as fp8_linear does it."""
    check_fp8_linear(x, weight, groups)
    parts = zip(_values(x).chunk(groups, 1), _weight_values(weight).chunk(groups), strict=True)
    return torch.cat([row_products(rows, part) for rows, part in parts], dim=1).bfloat16()


def bf16_linear(x: Tensor, weight: Tensor, out_dtype: torch.dtype = torch.bfloat16) -> Tensor:
    """out_dtype [n, o], bfloat16 or float32: x [n, K] times the transpose of weight [o, K], summed in float32.

    x and weight: bfloat16.
    """
    check_bf16_linear(x, weight, out_dtype)
    return row_products(x.float(), weight.float()).to(out_dtype)


def topk_gate(
    logits: Tensor,
    bias: Tensor | None,
    topk: int,
    scaling: float,
    image_bias: Tensor | None = None,
    image_mask: Tensor | None = None,
    valid_mask: Tensor | None = None,
) -> tuple[Tensor, Tensor]:
    """Experts of each row by logits float32 [n, E]: `route` on their `gate_scores`.

    Returns ids int64 [n, topk] and weights float32 [n, topk].
    """
    check_gate(logits, topk)
    return route(gate_scores(logits), bias, topk, scaling, image_bias, image_mask, valid_mask)


def check_fp8_linear(x: Mxfp8Rows, weight: Fp8Weight, groups: int = 1) -> None:
    """Raise ConfigError unless the weight is a packed one and x has the rows that its groups take."""
    tiles, scales = weight.tiles, weight.scales
    check_tensor("tiles of weight", tiles, ("o / 32", "i / 32", TILE_BYTES), torch.uint8)
    check_tensor("scales of weight", scales, tuple(tiles.shape[:2]), torch.uint8)
    if scales.device != tiles.device:
        raise ConfigError(f"scales of weight lie on {scales.device}, tiles on {tiles.device}; one device is required")
    check_groups(weight, groups)
    check_rows(x, groups * weight.in_features)


def check_rows(x: Mxfp8Rows, width: int) -> None:
    """Raise ConfigError unless x has rows of this width."""
    check_tensor("codes of x", x.codes, ("n", width), torch.uint8)
    check_tensor("scales of x", x.scales, (x.codes.shape[0], width // WEIGHT_TILE), torch.uint8)


def check_groups(weight: Fp8Weight, groups: int) -> None:
    """Raise ConfigError unless the rows of the weight fall into this many groups of whole tiles."""
    check_count("groups", groups, 1)
    if weight.tiles.shape[0] % groups:
        raise ConfigError(
            f"groups is {groups}; the {weight.out_features} rows of the weight must fall into equal groups of whole "
            f"tiles of {WEIGHT_TILE}"
        )


def check_bf16_linear(x: Tensor, weight: Tensor, out_dtype: torch.dtype) -> None:
    """Raise ConfigError unless bf16_linear takes these."""
    check_shape("weight", weight, ("o", "K"))
    check_shape("x", x, ("n", weight.shape[1]))
    for name, tensor in (("x", x), ("weight", weight)):
        if tensor.dtype != torch.bfloat16:
            raise ConfigError(f"{name} has dtype {tensor.dtype}; bfloat16 is required")
    if out_dtype not in (torch.bfloat16, torch.float32):
        raise ConfigError(f"out_dtype is {out_dtype}; bfloat16 and float32 are accepted")


def check_gate(logits: Tensor, topk: int) -> None:
    """Raise ConfigError unless topk_gate takes these."""
    check_shape("logits", logits, ("n", "E"))
    if logits.dtype != torch.float32:
        raise ConfigError(f"logits have dtype {logits.dtype}; float32 is required")
    if not isinstance(topk, int) or not 0 < topk <= logits.shape[1]:
        raise ConfigError(f"topk is {topk}; with {logits.shape[1]} experts it must be 1..{logits.shape[1]}")


def _values(x: Mxfp8Rows) -> Tensor:
    return dequantize_mxfp8(x.codes, x.scales)


def _weight_values(weight: Fp8Weight) -> Tensor:
    return dequantize_fp8_weight(*unpack_fp8_weight(weight))


OPS: dict[str, Callable[..., Any]] = {
    "pack_fp8_weight": pack_fp8_weight,
    "fp8_linear": fp8_linear,
    "grouped_fp8_linear": grouped_fp8_linear,
    "bf16_linear": bf16_linear,
    "topk_gate": topk_gate,
}
