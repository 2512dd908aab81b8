"""RMSNorm."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import torch
from torch import Tensor

from thalweg.interfaces import ConfigError
from thalweg.kernels.reference.numerics import carried, check_shape, sum_last


def rms_norm(x: Tensor, weight: Tensor, eps: float) -> Tensor:
    """x [..., k] divided by its root mean square and scaled by weight [k]; rounded once, at the end."""
    if x.dim() == 0:
        raise ConfigError("x has shape []; rows [..., k] are expected")
    width = x.shape[-1]
    check_shape("weight", weight, (width,))
    value = carried(x)
    mean_square = sum_last(value * value).unsqueeze(-1) / width
    return (value * torch.rsqrt(mean_square + eps) * weight.type_as(value)).type_as(x)


OPS: dict[str, Callable[..., Any]] = {"rms_norm": rms_norm}
