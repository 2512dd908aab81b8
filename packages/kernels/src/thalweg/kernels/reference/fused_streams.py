"""Hyper-connections in whole steps: reading the trunk, spreading an output over it, and the coefficients of both.

The trunk is bfloat16 [n, m, h]: n rows of m streams. Every step rounds where the model does.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import torch
from torch import Tensor

from thalweg.kernels.native_formats import HcMix, ReadRows
from thalweg.kernels.reference.fused_rows import check_rows
from thalweg.kernels.reference.hyper_connections import hc_coefficients, hc_collapse, hc_expand, hc_mixes
from thalweg.kernels.reference.norm import rms_norm
from thalweg.kernels.reference.quant import quantize_mxfp8


def hc_read(trunk: Tensor, read: Tensor, weight: Tensor, eps: float) -> ReadRows:
    """What a sub-layer reads: the streams mixed by `read`, RMSNorm, and the same rows in MXFP8.

    trunk: bfloat16 [n, m, h]; read: float32 [n, m]; weight: float32 or bfloat16 [h]. The mix and the norm are each
    rounded to bfloat16.
    """
    check_rows("trunk", trunk, torch.bfloat16, ("n", "m", "h"))
    check_rows("read", read, torch.float32, tuple(trunk.shape[:2]))
    rows = rms_norm(hc_collapse(trunk, read), weight, eps)
    return ReadRows(rows, *quantize_mxfp8(rows))


def hc_advance(trunk: Tensor, output: Tensor, mix: HcMix, weight: Tensor, eps: float) -> tuple[Tensor, ReadRows]:
    """The trunk after a sub-layer, and what the next one reads of it: hc_expand rounded to bfloat16, then hc_read.

    trunk: bfloat16 [n, m, h]; output: bfloat16 [n, h] of the sub-layer; mix: its coefficients; weight: float32 or
    bfloat16 [h] of the next one's norm.
    """
    check_rows("trunk", trunk, torch.bfloat16, ("n", "m", "h"))
    n, m, h = trunk.shape
    check_rows("output", output, torch.bfloat16, (n, h))
    check_rows("write", mix.write, torch.float32, (n, m))
    check_rows("carry", mix.carry, torch.float32, (n, m, m))
    advanced = hc_expand(trunk, output, mix.write, mix.carry)
    return advanced, hc_read(advanced, mix.next_read, weight, eps)


def hc_mix(
    trunk: Tensor, fn: Tensor, scale: Tensor, base: Tensor, norm_eps: float, mix_eps: float, iterations: int
) -> HcMix:
    """Coefficients of one sub-layer from the trunk bfloat16 [n, m, h] that it reads.

    fn: float32 [(2 + m) m, m * h]; scale: float32 [3]; base: float32 [(2 + m) m]; iterations: column divisions of the
    Sinkhorn normalisation.
    """
    check_rows("trunk", trunk, torch.bfloat16, ("n", "m", "h"))
    m, h = trunk.shape[1:]
    check_rows("fn", fn, torch.float32, ((2 + m) * m, m * h))
    check_rows("scale", scale, torch.float32, (3,))
    check_rows("base", base, torch.float32, ((2 + m) * m,))
    z = hc_mixes(trunk.float(), fn, norm_eps)
    return HcMix(*hc_coefficients(z, scale, base, m, iterations, mix_eps))


OPS: dict[str, Callable[..., Any]] = {"hc_read": hc_read, "hc_advance": hc_advance, "hc_mix": hc_mix}
