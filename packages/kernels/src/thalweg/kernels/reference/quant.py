"""Every number format and cast: MXFP8, MXFP4, FP4 with E4M3 scales, and FP8 weights in 32 x 32 tiles.

Codes: e4m3 is the `fn` variant (largest 448, no infinity); e2m1 has magnitudes 0, .5, 1, 1.5, 2, 3, 4, 6 and the sign
in bit 3, two per byte with the even column in the low nibble; ue8m0 byte b is 2^(b - 127). A cast takes float32: any
other carrier is rounded to it first. NaN is encoded as 0 unless `refuse_nan` is set.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import torch
from torch import Tensor

from thalweg.interfaces import ConfigError
from thalweg.kernels.reference.numerics import carried, check_shape, split_last

E4M3_MAX = 448.0
E2M1_MAX = 6.0
E4M3_AMAX_FLOOR = 1e-4
E2M1_AMAX_FLOOR = 6 * 2.0**-126
FP4_AMAX_FLOOR = 6 * 2.0**-9
MX_GROUP = 32
FP4_GROUP = 16
WEIGHT_TILE = 32

E2M1_VALUES = torch.tensor([0, 0.5, 1, 1.5, 2, 3, 4, 6, -0.0, -0.5, -1, -1.5, -2, -3, -4, -6], dtype=torch.float64)
E4M3_VALUES = torch.arange(256).to(torch.uint8).view(torch.float8_e4m3fn).to(torch.float64)
UE8M0_VALUES = torch.cat((2.0 ** (torch.arange(255, dtype=torch.float64) - 127), torch.tensor([torch.nan]).double()))
PAIR_VALUES = torch.stack((E2M1_VALUES[torch.arange(256) & 15], E2M1_VALUES[torch.arange(256) >> 4]), -1)

# A value above the i-th border has at least code i + 1. Ties go to the even code, so every other border is itself
# part of the upper side.
_BORDERS = torch.tensor([0.25, 0.75, 1.25, 1.75, 2.5, 3.5, 5.0], dtype=torch.float32)
_BORDERS[1::2] = torch.nextafter(_BORDERS[1::2], torch.zeros(3))


def encode_e2m1(x: Tensor) -> Tensor:
    """4-bit codes (uint8) of float32 x: round to nearest, ties to the even code, saturate at 6, keep the sign of 0."""
    magnitude = torch.bucketize(x.abs(), _BORDERS.to(x.device), out_int32=True).to(torch.uint8)
    return magnitude | (torch.signbit(x).to(torch.uint8) << 3)


def decode_e2m1(codes: Tensor, dtype: torch.dtype = torch.float32) -> Tensor:
    """Values of 4-bit codes, one per byte."""
    return _lookup(E2M1_VALUES, codes, dtype)


def pack_nibbles(codes: Tensor) -> Tensor:
    """Two 4-bit codes per byte along the last axis, even column in the low nibble."""
    return codes[..., 0::2] | (codes[..., 1::2] << 4)


def unpack_nibbles(packed: Tensor) -> Tensor:
    """The 4-bit codes of pack_nibbles."""
    return torch.stack((packed & 15, packed >> 4), -1).flatten(-2)


def ue8m0_from_scale(scale: Tensor) -> Tensor:
    """Exponent byte of float32 scales rounded up to a power of two; exact powers stay."""
    return ((scale.view(torch.int32) + 0x7FFFFF) >> 23).to(torch.uint8)


def decode_ue8m0(codes: Tensor, dtype: torch.dtype = torch.float32) -> Tensor:
    """2^(byte - 127); byte 255 is NaN."""
    return _lookup(UE8M0_VALUES, codes, dtype)


def decode_e4m3(codes: Tensor, dtype: torch.dtype = torch.float32) -> Tensor:
    """Values of e4m3fn bytes."""
    return codes.view(torch.float8_e4m3fn).to(dtype)


def encode_e4m3(x: Tensor) -> Tensor:
    """e4m3fn bytes of float32 x: clamp to +-448, round to nearest even."""
    return torch.clamp(x, -E4M3_MAX, E4M3_MAX).to(torch.float8_e4m3fn).view(torch.uint8)


def _lookup(table: Tensor, codes: Tensor, dtype: torch.dtype) -> Tensor:
    if codes.dtype != torch.uint8:
        raise ConfigError(f"codes have dtype {codes.dtype}; uint8 is required")
    return table.to(codes.device, dtype)[codes.to(torch.int32)]


def _groups(x: Tensor, size: int, refuse_nan: bool) -> Tensor:
    """x [..., D] as float32 [..., D / size, size] without NaN."""
    if x.dim() == 0 or x.shape[-1] % size:
        raise ConfigError(f"x has shape {list(x.shape)}; the last axis must be a multiple of {size}")
    value = carried(x).to(torch.float32)
    if refuse_nan and bool(torch.isnan(value).any()):
        raise ConfigError("x holds NaN; only numbers can be encoded")
    return split_last(torch.nan_to_num(value, nan=0.0, posinf=torch.inf, neginf=-torch.inf), size)


def _mx_scale(groups: Tensor, floor: float, largest: float) -> tuple[Tensor, Tensor]:
    """ue8m0 bytes [..., G] of the groups and the float32 factors 2^-(byte - 127)."""
    amax = groups.abs().amax(-1)
    codes = ue8m0_from_scale(torch.clamp(amax, min=floor) / largest)
    inverse = ((254 - codes.to(torch.int32)).clamp(min=0) << 23).view(torch.float32)
    return codes, inverse


def quantize_mxfp8(x: Tensor, refuse_nan: bool = False) -> tuple[Tensor, Tensor]:
    """x [..., D] -> e4m3 codes uint8 [..., D] and ue8m0 scales uint8 [..., D / 32]."""
    groups = _groups(x, MX_GROUP, refuse_nan)
    scales, inverse = _mx_scale(groups, E4M3_AMAX_FLOOR, E4M3_MAX)
    return encode_e4m3(groups * inverse.unsqueeze(-1)).flatten(-2), scales


def dequantize_mxfp8(codes: Tensor, scales: Tensor, dtype: torch.dtype = torch.float32) -> Tensor:
    """Values [..., D] of quantize_mxfp8's codes [..., D] and scales [..., D / 32]."""
    _check_scales(codes, scales, MX_GROUP, codes.shape[-1])
    values = split_last(decode_e4m3(codes, _wide(dtype)), MX_GROUP)
    return (values * decode_ue8m0(scales, _wide(dtype)).unsqueeze(-1)).flatten(-2).to(dtype)


def quantize_mxfp4(x: Tensor, refuse_nan: bool = False) -> tuple[Tensor, Tensor]:
    """x [..., D] -> packed e2m1 uint8 [..., D / 2] and ue8m0 scales uint8 [..., D / 32]."""
    groups = _groups(x, MX_GROUP, refuse_nan)
    scales, inverse = _mx_scale(groups, E2M1_AMAX_FLOOR, E2M1_MAX)
    return pack_nibbles(encode_e2m1(groups * inverse.unsqueeze(-1)).flatten(-2)), scales


def dequantize_mxfp4(packed: Tensor, scales: Tensor, dtype: torch.dtype = torch.float32) -> Tensor:
    """Values [..., D] of packed codes [..., D / 2] and scales [..., D / 32]; FP4 expert weights use the same form."""
    _check_scales(packed, scales, MX_GROUP, 2 * packed.shape[-1])
    values = split_last(_lookup(PAIR_VALUES, packed, _wide(dtype)).flatten(-2), MX_GROUP)
    return (values * decode_ue8m0(scales, _wide(dtype)).unsqueeze(-1)).flatten(-2).to(dtype)


def quantize_fp4_e4m3(x: Tensor, refuse_nan: bool = False) -> tuple[Tensor, Tensor]:
    """x [..., D] -> packed e2m1 uint8 [..., D / 2] and e4m3 scales uint8 [..., D / 16].

    Elements are multiplied by the float32 reciprocal of the rounded scale, not divided by it: that is the format.
    """
    groups = _groups(x, FP4_GROUP, refuse_nan)
    sixth = torch.tensor(1 / 6, dtype=torch.float32)
    scale = torch.clamp(groups.abs().amax(-1), min=FP4_AMAX_FLOOR) * sixth
    scales = encode_e4m3(scale)
    inverse = torch.reciprocal(decode_e4m3(scales))
    return pack_nibbles(encode_e2m1(groups * inverse.unsqueeze(-1)).flatten(-2)), scales


def dequantize_fp4_e4m3(packed: Tensor, scales: Tensor, dtype: torch.dtype = torch.float32) -> Tensor:
    """Values [..., D] of packed codes [..., D / 2] and e4m3 scales [..., D / 16]."""
    _check_scales(packed, scales, FP4_GROUP, 2 * packed.shape[-1])
    values = split_last(_lookup(PAIR_VALUES, packed, _wide(dtype)).flatten(-2), FP4_GROUP)
    return (values * decode_e4m3(scales, _wide(dtype)).unsqueeze(-1)).flatten(-2).to(dtype)


def fake_mxfp8(x: Tensor) -> Tensor:
    """x as MXFP8 stores it, in the dtype of x: what quantize_mxfp8 and dequantize_mxfp8 give, without the codes."""
    groups = _groups(x, MX_GROUP, refuse_nan=False)
    bits = (groups.abs().amax(-1, keepdim=True).clamp(min=E4M3_AMAX_FLOOR) / E4M3_MAX).view(torch.int32)
    scale = ((bits + 0x7FFFFF) & 0x7F800000).view(torch.float32)
    codes = torch.clamp(groups / scale, -E4M3_MAX, E4M3_MAX).to(torch.float8_e4m3fn)
    return (codes.to(carried(x).dtype) * scale).flatten(-2).to(x.dtype)


def fake_mxfp4(x: Tensor) -> Tensor:
    """x as MXFP4 stores it, in the dtype of x."""
    return dequantize_mxfp4(*quantize_mxfp4(x)).to(x.dtype)


def fake_fp4_e4m3(x: Tensor) -> Tensor:
    """x as the main compressed cache stores it, in the dtype of x."""
    return dequantize_fp4_e4m3(*quantize_fp4_e4m3(x)).to(x.dtype)


def quantize_fp8_weight(weight: Tensor) -> tuple[Tensor, Tensor]:
    """weight [o, i] -> e4m3 codes uint8 [o, i] and ue8m0 scales uint8 [ceil(o / 32), ceil(i / 32)]."""
    check_shape("weight", weight, ("o", "i"))
    rows, columns = weight.shape
    padded = torch.nn.functional.pad(
        carried(weight, "weight").to(torch.float32), (0, -columns % WEIGHT_TILE, 0, -rows % WEIGHT_TILE)
    )
    tiles = split_last(padded, WEIGHT_TILE).view(-(-rows // WEIGHT_TILE), WEIGHT_TILE, -1, WEIGHT_TILE)
    tiles = tiles.transpose(1, 2).flatten(-2)
    scales, inverse = _mx_scale(tiles, E4M3_AMAX_FLOOR, E4M3_MAX)
    codes = encode_e4m3(padded * _spread(inverse))
    return codes[:rows, :columns].contiguous(), scales


def dequantize_fp8_weight(codes: Tensor, scales: Tensor, dtype: torch.dtype = torch.float32) -> Tensor:
    """Values [o, i] of codes [o, i] and one ue8m0 scale per 32 x 32 tile."""
    check_shape("codes", codes, ("o", "i"))
    rows, columns = codes.shape
    check_shape("scales", scales, (-(-rows // WEIGHT_TILE), -(-columns // WEIGHT_TILE)))
    factors = _spread(decode_ue8m0(scales, _wide(dtype)))[:rows, :columns]
    return (decode_e4m3(codes, _wide(dtype)) * factors).to(dtype)


def _spread(tiles: Tensor) -> Tensor:
    return tiles.repeat_interleave(WEIGHT_TILE, 0).repeat_interleave(WEIGHT_TILE, 1)


def _wide(dtype: torch.dtype) -> torch.dtype:
    """The dtype in which value times scale is formed."""
    return torch.float64 if dtype == torch.float64 else torch.float32


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
