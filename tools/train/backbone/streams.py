"""Hyper-connections of a training pass: the arithmetic of the reference ops, compiled, over n rows of m streams."""

from __future__ import annotations

import torch
from tools.train.backbone.products import wide_product
from tools.train.backbone.sinkhorn import sinkhorn
from tools.train.common.compiled import Compiled
from torch import Tensor

from thalweg.kernels.reference.numerics import split_last


def mixes(trunk: Tensor, fn: Tensor, eps: float) -> Tensor:
    """Raw mixes float32 [n, (2 + m) m] of the trunk [n, m, h]; fn [(2 + m) m, m * h]."""
    flat = trunk.flatten(1)
    return _normalised(wide_product(flat, fn), flat, eps)


@Compiled
def _normalised(product: Tensor, flat: Tensor, eps: float) -> Tensor:
    return product * torch.rsqrt(flat.float().square().mean(-1, keepdim=True) + eps)


def coefficients(
    z: Tensor, scale: Tensor, base: Tensor, streams: int, iterations: int, eps: float
) -> tuple[Tensor, Tensor, Tensor]:
    """Reading weights [n, m], writing weights [n, m] and the carry [n, m, m] of raw mixes z, all float32."""
    read, write, logits = _gates(z, scale, base, streams, eps)
    return read, write, sinkhorn(logits, iterations, eps)


@Compiled
def _gates(z: Tensor, scale: Tensor, base: Tensor, streams: int, eps: float) -> tuple[Tensor, Tensor, Tensor]:
    read = torch.sigmoid(z[:, :streams] * scale[0] + base[:streams]) + eps
    write = 2 * torch.sigmoid(z[:, streams : 2 * streams] * scale[1] + base[streams : 2 * streams])
    logits = z[:, 2 * streams :] * scale[2] + base[2 * streams :]
    return read, write, split_last(logits, streams)


def collapse(trunk: Tensor, read: Tensor) -> Tensor:
    """One row [n, h] per token, in the dtype of the trunk [n, m, h]."""
    return _collapse(trunk, read.float())


@Compiled
def _collapse(trunk: Tensor, read: Tensor) -> Tensor:
    return (trunk.float() * read.unsqueeze(-1)).sum(1).to(trunk.dtype)


@Compiled
def expand(trunk: Tensor, output: Tensor, write: Tensor, carry: Tensor) -> Tensor:
    """The trunk [n, m, h] after a sub-layer with output [n, h]."""
    mixed = (carry.unsqueeze(-1) * trunk.float().unsqueeze(2)).sum(1)
    return (write.unsqueeze(-1) * output.float().unsqueeze(1) + mixed).to(trunk.dtype)
