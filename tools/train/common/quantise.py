"""Masters as the checkpoint formats store them: values for training, codes and scales for files."""

from __future__ import annotations

import torch
from torch import Tensor

from thalweg.interfaces import ConfigError
from thalweg.kernels.reference.formats import E4M3_MAX, round_e4m3, round_up_to_power
from thalweg.kernels.reference.quant import (
    E4M3_AMAX_FLOOR,
    WEIGHT_TILE,
    fake_mxfp4,
    fake_mxfp8,
    quantize_fp8_weight,
    quantize_mxfp4,
    quantize_mxfp8,
)
from thalweg.model.names import Format


def fake_quantise(values: Tensor, format: Format) -> Tensor:
    """float32 values [..., o, i] of weights as a file would give them back, in float32."""
    if format == "fp8":
        return _fake_fp8_weight(values)
    if format == "fp4":
        return fake_mxfp4(values)
    if format == "engram":
        return fake_mxfp8(values)
    return values.bfloat16().float() if format == "bf16" else values


def quantise(values: Tensor, format: Format) -> tuple[Tensor, Tensor]:
    """Codes and scales, uint8, of float32 values [o, i] in one of the formats that have scales."""
    if format == "fp8":
        return quantize_fp8_weight(values)
    if format == "fp4":
        return quantize_mxfp4(values)
    if format == "engram":
        return quantize_mxfp8(values)
    raise ConfigError(f"format is {format!r}; fp8, fp4 and engram have scales")


def _fake_fp8_weight(values: Tensor) -> Tensor:
    """What `quantize_fp8_weight` stores, for many matrices of whole tiles at once and without table look-ups."""
    *batch, rows, columns = values.shape
    if rows % WEIGHT_TILE or columns % WEIGHT_TILE:
        raise ConfigError(
            f"values have shape {list(values.shape)}; rows and columns must be multiples of {WEIGHT_TILE}"
        )
    tiles = values.reshape(*batch, rows // WEIGHT_TILE, WEIGHT_TILE, columns // WEIGHT_TILE, WEIGHT_TILE)
    largest = tiles.abs().amax((-3, -1), keepdim=True)
    scale = round_up_to_power(torch.clamp(largest, min=E4M3_AMAX_FLOOR) / E4M3_MAX)
    return (round_e4m3(tiles / scale) * scale).view(values.shape)
