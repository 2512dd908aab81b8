"""Engram in whole steps: rows of the table as a linear's input, and the gated value added to the trunk."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import torch
from torch import Tensor

from thalweg.interfaces import ConfigError
from thalweg.kernels.native_formats import Mxfp8Rows
from thalweg.kernels.reference.engram import engram_apply, engram_gate
from thalweg.kernels.reference.fused_rows import check_rows
from thalweg.kernels.reference.quant import MX_GROUP


def engram_lookup(codes: Tensor, scales: Tensor, buckets: Tensor) -> Mxfp8Rows:
    """The table's rows of every token, one after the other: MXFP8 [n, C * d].

    codes: uint8 [R, d] e4m3; scales: uint8 [R, d / 32] ue8m0; buckets: int64 [n, C] row numbers, of which -1, the
    mark of an image row, reads row 0.
    """
    check_table(codes, scales, buckets)
    rows = buckets.clamp(min=0)
    return Mxfp8Rows(codes[rows].flatten(1), scales[rows].flatten(1))


def engram_update(
    trunk: Tensor,
    projected: Tensor,
    q_weight: Tensor,
    k_weight: Tensor,
    eps: float,
    image_mask: Tensor | None = None,
) -> Tensor:
    """The trunk bfloat16 [n, m, h] with the gated value added to every stream; rows of image_mask [n] stay.

    projected: bfloat16 [n, (m + 1) * h], the keys of the m streams, then the value; q_weight, k_weight: float32 or
    bfloat16 [m, h]. Gates stay float32.
    """
    check_rows("trunk", trunk, torch.bfloat16, ("n", "m", "h"))
    n, m, h = trunk.shape
    check_rows("projected", projected, torch.bfloat16, (n, (m + 1) * h))
    split = projected.float().view(n, m + 1, h)
    gate = engram_gate(trunk.float(), split[:, :m], q_weight, k_weight, eps)
    return engram_apply(trunk, split[:, m], gate, image_mask)


def check_table(codes: Tensor, scales: Tensor, buckets: Tensor) -> None:
    """Raise ConfigError unless codes and scales are a table of MXFP8 rows, and buckets row numbers of it."""
    check_rows("codes", codes, torch.uint8, ("R", "d"))
    rows, width = codes.shape
    if rows == 0 or width % MX_GROUP:
        raise ConfigError(f"codes has shape {[rows, width]}; at least one row of a multiple of {MX_GROUP} is required")
    check_rows("scales", scales, torch.uint8, (rows, width // MX_GROUP))
    check_rows("buckets", buckets, torch.int64, ("n", "C"))


OPS: dict[str, Callable[..., Any]] = {"engram_lookup": engram_lookup, "engram_update": engram_update}
