"""Keys on their way into the cache: RMSNorm, rotation, and the store of the rotated rows, in one op.

Every stage is rounded to bfloat16 before the next one, as if they were ops of their own.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import torch
from torch import Tensor

from thalweg.interfaces import ConfigError
from thalweg.kernels.reference.cache import store_records
from thalweg.kernels.reference.norm import rms_norm
from thalweg.kernels.reference.numerics import check_shape
from thalweg.kernels.reference.record_format import RecordFormat
from thalweg.kernels.reference.rope import apply_rope


def norm_rope(x: Tensor, weight: Tensor, eps: float, cos: Tensor, sin: Tensor) -> Tensor:
    """The normed and rotated rows bfloat16 [n, D] of x [n, D].

    x: bfloat16, or float32 that is rounded to it first; rows may lie apart. weight: float32 or bfloat16 [D]. cos, sin:
    float32 [n, rope / 2], which turn the last `rope` columns.
    """
    check_norm_rope(x, weight, cos, sin)
    return apply_rope(rms_norm(x.bfloat16(), weight, eps), cos, sin)


def norm_rope_store(
    x: Tensor,
    weight: Tensor,
    eps: float,
    cos: Tensor,
    sin: Tensor,
    view: Tensor,
    slots: Tensor,
    record_format: RecordFormat,
) -> Tensor:
    """Store the rows of `norm_rope` as records; returns the normed rows before the rotation, bfloat16 [n, D].

    view: uint8 [pages, entries, 1, record_bytes], written in place. slots: int [n], -1 = not stored; see
    `store_records`. The other arguments are those of `norm_rope`.
    """
    check_norm_rope(x, weight, cos, sin)
    normed = rms_norm(x.bfloat16(), weight, eps)
    store_records(view, slots, apply_rope(normed, cos, sin), record_format)
    return normed


def check_norm_rope(x: Tensor, weight: Tensor, cos: Tensor, sin: Tensor) -> None:
    """Raise ConfigError unless these go together."""
    check_shape("x", x, ("n", "D"))
    rows, width = x.shape
    check_shape("weight", weight, (width,))
    check_shape("cos", cos, (rows, "rope / 2"))
    check_shape("sin", sin, tuple(cos.shape))
    if not 0 < 2 * cos.shape[1] <= width:
        raise ConfigError(f"cos has {cos.shape[1]} columns for rows of {width}; 1 to {width // 2} are accepted")
    for name, tensor, accepted in (
        ("x", x, (torch.bfloat16, torch.float32)),
        ("weight", weight, (torch.bfloat16, torch.float32)),
        ("cos", cos, (torch.float32,)),
        ("sin", sin, (torch.float32,)),
    ):
        if tensor.dtype not in accepted:
            wanted = " or ".join(str(dtype).removeprefix("torch.") for dtype in accepted)
            raise ConfigError(f"{name} has dtype {tensor.dtype}; {wanted} is required")


OPS: dict[str, Callable[..., Any]] = {"norm_rope": norm_rope, "norm_rope_store": norm_rope_store}
"""Ops of this module by name, for the registry."""
