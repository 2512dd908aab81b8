"""Block casts along a row with a choice of element format, group and scale, as device GEMMs take them."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import torch
from torch import Tensor

from thalweg.interfaces import ConfigError
from thalweg.kernels.reference import formats, quant
from thalweg.kernels.reference.numerics import carried, split_last

GROUPS = (16, 32, 64, 128)
VALUE_FORMATS = {"e4m3": (formats.E4M3_MAX, quant.E4M3_AMAX_FLOOR), "e2m1": (formats.E2M1_MAX, quant.E2M1_AMAX_FLOOR)}
SCALE_FORMATS = ("ue8m0", "float32", "e4m3")


def cast_per_token(x: Tensor, value_format: str, group: int, scale_format: str) -> tuple[Tensor, Tensor]:
    """Cast x [..., D] in groups along the last axis.

    value_format: e4m3 (codes uint8 [..., D]) or e2m1 (packed uint8 [..., D / 2]). scale_format: ue8m0 (power of two,
    rounded up) or float32, both returned as float32 [..., D / group]; or e4m3, returned as bytes.
    """
    if value_format not in VALUE_FORMATS:
        raise ConfigError(f"value_format is {value_format!r}; {' and '.join(VALUE_FORMATS)} are accepted")
    if scale_format not in SCALE_FORMATS:
        raise ConfigError(f"scale_format is {scale_format!r}; {', '.join(SCALE_FORMATS)} are accepted")
    if group not in GROUPS or x.shape[-1] % group:
        raise ConfigError(f"group is {group} for rows of {x.shape[-1]}; a divisor among {GROUPS} is required")
    largest, floor = VALUE_FORMATS[value_format]
    if scale_format == "e4m3":
        floor = largest * 2.0**-9
    groups = split_last(carried(x).float(), group)
    amax = torch.clamp(groups.abs().amax(-1), min=floor)
    scale = amax / largest
    if scale_format == "float32":
        stored, factor = scale, largest / amax
    elif scale_format == "ue8m0":
        stored = formats.round_up_to_power(scale)
        factor = torch.reciprocal(stored)
    else:
        stored = formats.encode_e4m3(scale)
        factor = torch.reciprocal(formats.decode_e4m3(stored))
    scaled = groups * factor.unsqueeze(-1)
    if value_format == "e4m3":
        return formats.encode_e4m3(scaled).flatten(-2), stored
    return formats.pack_nibbles(formats.encode_e2m1(scaled).flatten(-2)), stored


def pack_scales(scales: Tensor) -> Tensor:
    """Exponent bytes of power-of-two scales float32 [..., G], four to an int32 [..., G / 4], the first lowest."""
    if scales.shape[-1] % 4:
        raise ConfigError(f"scales have {scales.shape[-1]} columns; packing four to a word needs a multiple of 4")
    exponents = (scales.float().contiguous().view(torch.int32) >> 23).to(torch.uint8)
    return exponents.contiguous().view(torch.int32)


OPS: dict[str, Callable[..., Any]] = {"cast_per_token": cast_per_token, "pack_scales": pack_scales}
