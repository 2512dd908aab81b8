"""Group casts: MXFP8, MXFP4, FP4 with E4M3 scales, and FP8 weights in 32 x 32 tiles.

A cast takes float32: any other carrier is rounded to it first. The `fake_` forms return the value that a stored group
decodes to, in the dtype of the input. NaN is encoded as 0 unless `refuse_nan` is set.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import torch
from torch import Tensor

from thalweg.interfaces import ConfigError
from thalweg.kernels.reference import formats
from thalweg.kernels.reference.formats import E2M1_MAX, E4M3_MAX
from thalweg.kernels.reference.numerics import carried, check_shape, split_last

E4M3_AMAX_FLOOR = 1e-4
E2M1_AMAX_FLOOR = 6 * 2.0**-126
FP4_AMAX_FLOOR = 6 * 2.0**-9
MX_GROUP = 32
FP4_GROUP = 16
WEIGHT_TILE = 32


def quantize_mxfp8(x: Tensor, refuse_nan: bool = False) -> tuple[Tensor, Tensor]:
    """x [..., D] -> e4m3 codes uint8 [..., D] and ue8m0 scales uint8 [..., D / 32]."""
    groups = _groups(x, MX_GROUP, refuse_nan)
    scale = _mx_scale(groups, E4M3_AMAX_FLOOR, E4M3_MAX)
    return formats.encode_e4m3(groups / scale).flatten(-2), formats.encode_ue8m0(scale).squeeze(-1)


def dequantize_mxfp8(codes: Tensor, scales: Tensor, dtype: torch.dtype = torch.float32) -> Tensor:
    """Values [..., D] of quantize_mxfp8's codes [..., D] and scales [..., D / 32], formed in float32."""
    _check_scales(codes, scales, MX_GROUP, codes.shape[-1])
    values = split_last(formats.decode_e4m3(codes), MX_GROUP)
    return (values * formats.decode_ue8m0(scales).unsqueeze(-1)).flatten(-2).to(dtype)


def fake_mxfp8(x: Tensor) -> Tensor:
    """x as MXFP8 stores it, in the dtype of x."""
    groups = _groups(x, MX_GROUP)
    scale = _mx_scale(groups, E4M3_AMAX_FLOOR, E4M3_MAX)
    return (formats.round_e4m3(groups / scale) * scale).view(x.shape).type_as(x)


def quantize_mxfp4(x: Tensor, refuse_nan: bool = False) -> tuple[Tensor, Tensor]:
    """x [..., D] -> packed e2m1 uint8 [..., D / 2] and ue8m0 scales uint8 [..., D / 32]."""
    groups = _groups(x, MX_GROUP, refuse_nan)
    scale = _mx_scale(groups, E2M1_AMAX_FLOOR, E2M1_MAX)
    packed = formats.pack_nibbles(formats.encode_e2m1(groups / scale))
    return packed.flatten(-2), formats.encode_ue8m0(scale).squeeze(-1)


def dequantize_mxfp4(packed: Tensor, scales: Tensor, dtype: torch.dtype = torch.float32) -> Tensor:
    """Values [..., D] of packed codes [..., D / 2] and scales [..., D / 32]; FP4 expert weights use the same form."""
    _check_scales(packed, scales, MX_GROUP, 2 * packed.shape[-1])
    values = split_last(formats.decode_e2m1_pairs(packed), MX_GROUP)
    return (values * formats.decode_ue8m0(scales).unsqueeze(-1)).flatten(-2).to(dtype)


def fake_mxfp4(x: Tensor) -> Tensor:
    """x as MXFP4 stores it, in the dtype of x."""
    groups = _groups(x, MX_GROUP)
    scale = _mx_scale(groups, E2M1_AMAX_FLOOR, E2M1_MAX)
    return (formats.round_e2m1(groups / scale) * scale).view(x.shape).type_as(x)


def quantize_fp4_e4m3(x: Tensor, refuse_nan: bool = False) -> tuple[Tensor, Tensor]:
    """x [..., D] -> packed e2m1 uint8 [..., D / 2] and e4m3 scales uint8 [..., D / 16].

    Elements are multiplied by the float32 reciprocal of the rounded scale, not divided by it: that is the format.
    """
    groups = _groups(x, FP4_GROUP, refuse_nan)
    scale = _fp4_scale(groups)
    packed = formats.pack_nibbles(formats.encode_e2m1(groups * torch.reciprocal(scale)))
    return packed.flatten(-2), formats.encode_e4m3(scale).squeeze(-1)


def dequantize_fp4_e4m3(packed: Tensor, scales: Tensor, dtype: torch.dtype = torch.float32) -> Tensor:
    """Values [..., D] of packed codes [..., D / 2] and e4m3 scales [..., D / 16]."""
    _check_scales(packed, scales, FP4_GROUP, 2 * packed.shape[-1])
    values = split_last(formats.decode_e2m1_pairs(packed), FP4_GROUP)
    return (values * formats.decode_e4m3(scales).unsqueeze(-1)).flatten(-2).to(dtype)


def fake_fp4_e4m3(x: Tensor) -> Tensor:
    """x as the main compressed cache stores it, in the dtype of x."""
    groups = _groups(x, FP4_GROUP)
    scale = _fp4_scale(groups)
    return (formats.round_e2m1(groups * torch.reciprocal(scale)) * scale).view(x.shape).type_as(x)


def quantize_fp8_weight(weight: Tensor) -> tuple[Tensor, Tensor]:
    """weight [o, i] -> e4m3 codes uint8 [o, i] and ue8m0 scales uint8 [ceil(o / 32), ceil(i / 32)]."""
    check_shape("weight", weight, ("o", "i"))
    rows, columns = weight.shape
    padded = torch.nn.functional.pad(
        carried(weight, "weight").float(), (0, -columns % WEIGHT_TILE, 0, -rows % WEIGHT_TILE)
    )
    tiles = split_last(padded, WEIGHT_TILE).view(-(-rows // WEIGHT_TILE), WEIGHT_TILE, -1, WEIGHT_TILE)
    scale = _mx_scale(tiles.transpose(1, 2).flatten(-2), E4M3_AMAX_FLOOR, E4M3_MAX).squeeze(-1)
    codes = formats.encode_e4m3(padded / _spread(scale))
    return codes[:rows, :columns].contiguous(), formats.encode_ue8m0(scale)


def dequantize_fp8_weight(codes: Tensor, scales: Tensor, dtype: torch.dtype = torch.float32) -> Tensor:
    """Values [o, i] of codes [o, i] and one ue8m0 scale per 32 x 32 tile."""
    check_shape("codes", codes, ("o", "i"))
    rows, columns = codes.shape
    check_shape("scales", scales, (-(-rows // WEIGHT_TILE), -(-columns // WEIGHT_TILE)))
    factors = _spread(formats.decode_ue8m0(scales))[:rows, :columns]
    return (formats.decode_e4m3(codes) * factors).to(dtype)


def _groups(x: Tensor, size: int, refuse_nan: bool = False) -> Tensor:
    """x [..., D] as contiguous float32 [..., D / size, size] without NaN."""
    if x.dim() == 0 or x.shape[-1] % size:
        raise ConfigError(f"x has shape {list(x.shape)}; the last axis must be a multiple of {size}")
    value = carried(x).float().contiguous()
    if refuse_nan and bool(torch.isnan(value).any()):
        raise ConfigError(f"x holds {int(torch.isnan(value).sum())} NaN elements; only numbers can be encoded")
    return split_last(torch.nan_to_num(value, nan=0.0, posinf=torch.inf, neginf=-torch.inf), size)


def _mx_scale(groups: Tensor, floor: float, largest: float) -> Tensor:
    """The power of two [..., G, 1] that brings each group's largest magnitude to `largest` or below."""
    amax = groups.abs().amax(-1, keepdim=True)
    return formats.round_up_to_power(torch.clamp(amax, min=floor) / largest)


def _fp4_scale(groups: Tensor) -> Tensor:
    """The e4m3 value [..., G, 1] by which the elements of each group are scaled."""
    amax = groups.abs().amax(-1, keepdim=True)
    return formats.round_e4m3(torch.clamp(amax, min=FP4_AMAX_FLOOR) * _SIXTH)


_SIXTH = float(torch.tensor(1 / 6, dtype=torch.float32))


def _spread(tiles: Tensor) -> Tensor:
    """One value per 32 x 32 tile, repeated over the tile."""
    return tiles.repeat_interleave(WEIGHT_TILE, 0).repeat_interleave(WEIGHT_TILE, 1)


def _check_scales(codes: Tensor, scales: Tensor, group: int, width: int) -> None:
    wanted = (*codes.shape[:-1], width // group)
    if width % group or tuple(scales.shape) != wanted:
        raise ConfigError(
            f"scales have shape {list(scales.shape)} for {width} elements a row; one per {group}, so {list(wanted)}, "
            "is expected"
        )
    for name, tensor in (("codes", codes), ("scales", scales)):
        if tensor.dtype != torch.uint8:
            raise ConfigError(f"{name} have dtype {tensor.dtype}; uint8 is required")


OPS: dict[str, Callable[..., Any]] = {
    "quantize_mxfp8": quantize_mxfp8,
    "dequantize_mxfp8": dequantize_mxfp8,
    "quantize_mxfp4": quantize_mxfp4,
    "dequantize_mxfp4": dequantize_mxfp4,
    "quantize_fp4_e4m3": quantize_fp4_e4m3,
    "dequantize_fp4_e4m3": dequantize_fp4_e4m3,
    "quantize_fp8_weight": quantize_fp8_weight,
    "dequantize_fp8_weight": dequantize_fp8_weight,
    "fake_mxfp8": fake_mxfp8,
    "fake_mxfp4": fake_mxfp4,
    "fake_fp4_e4m3": fake_fp4_e4m3,
}
