"""Steps of the forward pass on single rows that end in a cast: each is a sequence of the plain ops with its roundings.

A value is formed in float32; where the model rounds to bfloat16 between two ops, so does a fused one.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import torch
from torch import Tensor

from thalweg.interfaces import ConfigError
from thalweg.kernels.native_formats import Mxfp8Rows
from thalweg.kernels.reference.moe import swiglu
from thalweg.kernels.reference.norm import rms_norm
from thalweg.kernels.reference.numerics import check_shape
from thalweg.kernels.reference.quant import MX_GROUP, quantize_mxfp4, quantize_mxfp8
from thalweg.kernels.reference.rope import apply_rope


def norm_quantize(x: Tensor, weight: Tensor, eps: float) -> Mxfp8Rows:
    """RMSNorm of x bfloat16 [n, K], rounded to bfloat16, in MXFP8; rows of x may lie apart.

    weight: float32 or bfloat16 [K]; K is a multiple of 32.
    """
    check_rows("x", x, torch.bfloat16, ("n", "K"))
    return Mxfp8Rows(*quantize_mxfp8(rms_norm(x, weight, eps)))


def swiglu_quantize(gate_up: Tensor, limit: float, weights: Tensor | None = None) -> Mxfp8Rows:
    """Clamped SwiGLU of gate_up bfloat16 [n, 2 i], gate half first, in MXFP8 [n, i].

    weights: float32 [n], a factor of each row. Nothing is rounded between the product and its cast; i is a multiple
    of 32.
    """
    check_rows("gate_up", gate_up, torch.bfloat16, ("n", "2i"))
    if gate_up.shape[1] % (2 * MX_GROUP):
        raise ConfigError(f"gate_up has {gate_up.shape[1]} columns; two halves of a multiple of {MX_GROUP} are needed")
    gate, up = gate_up.float().chunk(2, dim=-1)
    return Mxfp8Rows(*quantize_mxfp8(swiglu(gate, up, limit, weights)))


def rotate_rows(x: Tensor, cos: Tensor, sin: Tensor) -> None:
    """Rotate the last columns of x bfloat16 [n, H, D] in place, as apply_rope does; cos, sin: float32 [n, rope / 2]."""
    check_rotation(x, cos, sin)
    x.copy_(apply_rope(x, cos, sin))


def rotate_quantize_mxfp4(x: Tensor, cos: Tensor, sin: Tensor) -> tuple[Tensor, Tensor]:
    """Rows x bfloat16 [n, G, d] with their last columns rotated, rounded to bfloat16, in MXFP4.

    cos, sin: float32 [n, rope / 2]. Returns packed codes uint8 [n, G, d / 2] and scales uint8 [n, G, d / 32].
    """
    check_rotation(x, cos, sin)
    return quantize_mxfp4(apply_rope(x, cos, sin))


def unrotate_quantize(x: Tensor, cos: Tensor, sin: Tensor) -> Mxfp8Rows:
    """Rows x bfloat16 [n, H, D] with their last columns rotated back, rounded to bfloat16, in MXFP8 [n, H * D].

    cos, sin: float32 [n, rope / 2], those that the rows were rotated by.
    """
    check_rotation(x, cos, sin)
    return Mxfp8Rows(*quantize_mxfp8(apply_rope(x, cos, sin, inverse=True).flatten(1)))


def check_rows(name: str, tensor: Tensor, dtype: torch.dtype, shape: tuple[int | str, ...]) -> None:
    """Raise ConfigError unless a tensor has this dtype and shape; a string stands for any size."""
    if tensor.dtype != dtype:
        raise ConfigError(f"{name} has dtype {tensor.dtype}; {dtype} is required")
    check_shape(name, tensor, shape)


def check_rotation(x: Tensor, cos: Tensor, sin: Tensor) -> None:
    """Raise ConfigError unless x bfloat16 [n, H, D], D a multiple of 32, can be rotated by float32 [n, rope / 2]."""
    check_rows("x", x, torch.bfloat16, ("n", "H", "D"))
    check_rows("cos", cos, torch.float32, (x.shape[0], "rope / 2"))
    check_rows("sin", sin, torch.float32, tuple(cos.shape))
    if x.shape[2] % MX_GROUP or 2 * cos.shape[1] > x.shape[2]:
        raise ConfigError(
            f"x has {x.shape[2]} columns and cos {cos.shape[1]}; a multiple of {MX_GROUP} columns, of which twice the "
            "number of cos are rotated, is required"
        )


OPS: dict[str, Callable[..., Any]] = {
    "norm_quantize": norm_quantize,
    "swiglu_quantize": swiglu_quantize,
    "rotate_rows": rotate_rows,
    "rotate_quantize_mxfp4": rotate_quantize_mxfp4,
    "unrotate_quantize": unrotate_quantize,
}
