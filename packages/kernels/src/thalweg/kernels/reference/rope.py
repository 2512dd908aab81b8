"""Rotary embedding of the last columns, interleaved pairs, with YaRN for layers that read a compressed stream."""

from __future__ import annotations

import math
from collections.abc import Callable
from dataclasses import dataclass
from typing import Any

import torch
from torch import Tensor

from thalweg.interfaces import ConfigError
from thalweg.kernels.reference.numerics import carried


@dataclass(frozen=True, slots=True)
class YarnScaling:
    """How YaRN stretches the low frequencies (`rope_scaling` of the checkpoint)."""

    factor: float
    beta_fast: float
    beta_slow: float
    original_positions: int


def yarn_range(dim: int, theta: float, yarn: YarnScaling) -> tuple[int, int]:
    """First and last frequency index of the ramp between kept and stretched frequencies."""

    def index_of(turns: float) -> float:
        return dim * math.log(yarn.original_positions / (2 * math.pi * turns)) / (2 * math.log(theta))

    return max(math.floor(index_of(yarn.beta_fast)), 0), min(math.ceil(index_of(yarn.beta_slow)), dim - 1)


def inverse_frequencies(dim: int, theta: float, yarn: YarnScaling | None = None) -> Tensor:
    """Angle per position of each pair, float32 [dim / 2]."""
    if dim <= 0 or dim % 2:
        raise ConfigError(f"dim is {dim}; the rotary width must be positive and even")
    frequencies = 1.0 / (theta ** (torch.arange(0, dim, 2, dtype=torch.float32) / dim))
    if yarn is None:
        return frequencies
    low, high = yarn_range(dim, theta, yarn)
    span = high - low if high != low else 0.001
    ramp = torch.clamp((torch.arange(dim // 2, dtype=torch.float32) - low) / span, 0, 1)
    return frequencies * (1 - ramp) + frequencies / yarn.factor * ramp


def rope_table(positions: Tensor, inv_freq: Tensor) -> tuple[Tensor, Tensor]:
    """cos and sin, float32 [n, dim / 2] each, of the float32 products position [n] * inv_freq [dim / 2].

    Evaluated in float32, like the tables of the tiny model's vectors: rounding a float64 cosine gives another last
    bit in a few percent of the cells, and that moves selections downstream.
    """
    angles = positions.float().unsqueeze(-1) * inv_freq
    return torch.cos(angles), torch.sin(angles)


def apply_rope(x: Tensor, cos: Tensor, sin: Tensor, inverse: bool = False) -> Tensor:
    """Rotate the last 2 * cos.shape[-1] columns of x [n, D] or [n, H, D]; row i uses row i of the tables.

    Pair (a, b) of columns (2i, 2i + 1) becomes (a cos - b sin, a sin + b cos); `inverse` negates sin.
    """
    width = 2 * cos.shape[-1]
    if x.dim() not in (2, 3) or x.shape[0] != cos.shape[0] or x.shape[-1] < width or sin.shape != cos.shape:
        raise ConfigError(
            f"apply_rope got x {list(x.shape)}, cos {list(cos.shape)}, sin {list(sin.shape)}; "
            "x [n, D] or [n, H, D] and tables [n, d / 2] with d <= D are expected"
        )
    value = carried(x)
    cos, sin = cos.type_as(value), sin.type_as(value)
    if x.dim() == 3:
        cos, sin = cos.unsqueeze(1), sin.unsqueeze(1)
    if inverse:
        sin = -sin
    kept, turned = value[..., :-width], value[..., -width:]
    a, b = turned[..., 0::2], turned[..., 1::2]
    rotated = torch.stack((a * cos - b * sin, a * sin + b * cos), -1).flatten(-2)
    return torch.cat((kept, rotated), -1).type_as(x)


OPS: dict[str, Callable[..., Any]] = {
    "inverse_frequencies": inverse_frequencies,
    "rope_table": rope_table,
    "apply_rope": apply_rope,
}
