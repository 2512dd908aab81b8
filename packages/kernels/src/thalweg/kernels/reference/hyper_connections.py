"""Manifold-constrained hyper-connections: the mixing of m residual streams around a sub-layer."""

from __future__ import annotations

import functools
from collections.abc import Callable
from typing import Any, TypeVar

import numpy as np
import torch
from numpy.typing import NDArray
from torch import Tensor

from thalweg.interfaces import ConfigError
from thalweg.kernels.reference.gemm import matmul
from thalweg.kernels.reference.numerics import carried, check_shape, sigmoid, split_last, sum_last

IN_PAIRS_FROM = 8  # numpy adds this many neighbours in pairs, fewer in order

_Matrices = NDArray[np.floating[Any]]
_Array = TypeVar("_Array", Tensor, _Matrices)


def hc_mixes(x: Tensor, fn: Tensor, eps: float) -> Tensor:
    """Raw mixes z [n, (2 + m) m] of the streams x [n, m, h]; fn [(2 + m) m, m * h] carries the norm weight."""
    n, m, h = x.shape
    check_shape("fn", fn, ((2 + m) * m, m * h))
    flat = carried(x).reshape(n, m * h)
    mean_square = sum_last(flat * flat).unsqueeze(-1) / (m * h)
    return (matmul(flat, fn.type_as(flat)) * torch.rsqrt(mean_square + eps)).type_as(x)


def hc_coefficients(
    z: Tensor, scale: Tensor, base: Tensor, m: int, iters: int, eps: float
) -> tuple[Tensor, Tensor, Tensor]:
    """Weights of one sub-layer from the raw mixes z [n, (2 + m) m]; scale [3], base [(2 + m) m].

    Returns pre [n, m] (input of the *next* sub-layer), post [n, m] and the doubly normalised comb [n, m, m].
    """
    check_shape("z", z, ("n", (2 + m) * m))
    check_shape("scale", scale, (3,))
    check_shape("base", base, ((2 + m) * m,))
    if iters < 1:
        raise ConfigError(f"iters is {iters}; at least 1 column division is needed")
    value = carried(z)
    factors = torch.cat((scale[0].expand(m), scale[1].expand(m), scale[2].expand(m * m)))
    value = value * factors.type_as(value) + base.type_as(value)
    gates = sigmoid(value[:, : 2 * m])
    comb = sinkhorn(split_last(value[:, 2 * m :], m), iters, eps)
    return (gates[:, :m] + eps).type_as(z), (2 * gates[:, m:]).type_as(z), comb.type_as(z)


def sinkhorn(logits: Tensor, iters: int, eps: float) -> Tensor:
    """Rows and columns of softmax(logits [n, m, m]) normalised in turn; `iters` counts the column divisions."""
    exponentials = torch.exp(logits - logits.amax(-1, keepdim=True).detach()).permute(1, 2, 0).contiguous()
    if exponentials.device.type == "cpu" and not exponentials.requires_grad and exponentials.shape[0] < IN_PAIRS_FROM:
        # numpy divides to the same bits, and a small matrix costs little but the calls.
        comb = torch.from_numpy(_normalised(exponentials.numpy(), _numpy_sum, iters, eps))
    else:
        comb = _normalised(exponentials, _sum_in_order, iters, eps)
    return comb.permute(2, 0, 1).contiguous()


def _normalised(comb: _Array, total: Callable[[_Array, int], _Array], iters: int, eps: float) -> _Array:
    """The divisions of `sinkhorn` on comb [row, column, n]; total(comb, 1) sums rows, total(comb, 0) columns."""
    comb = comb / total(comb, 1) + eps
    comb = comb / (total(comb, 0) + eps)
    for _ in range(iters - 1):
        comb = comb / (total(comb, 1) + eps)
        comb = comb / (total(comb, 0) + eps)
    return comb


def _sum_in_order(comb: Tensor, axis: int) -> Tensor:
    """Sum over one axis in index order, kept as an axis of 1: torch.sum changes its order with the number of rows."""
    first, *others = torch.split(comb, 1, axis)
    return functools.reduce(lambda total, part: total + part, others, first)


def _numpy_sum(comb: _Matrices, axis: int) -> _Matrices:
    """As _sum_in_order, for fewer than IN_PAIRS_FROM terms."""
    total: _Matrices = np.add.reduce(comb, axis, keepdims=True)
    return total


def hc_collapse(x: Tensor, pre: Tensor) -> Tensor:
    """Sub-layer input sum_j pre_j X_j [n, h] of x [n, m, h] and pre [n, m]."""
    check_shape("pre", pre, tuple(x.shape[:2]))
    value = carried(x)
    return torch.bmm(pre.type_as(value).unsqueeze(1), value).squeeze(1).type_as(x)


def hc_expand(x: Tensor, y: Tensor, post: Tensor, comb: Tensor) -> Tensor:
    """New streams X_k = post_k y + sum_j comb[j, k] X_j: x [n, m, h], sub-layer output y [n, h] -> [n, m, h]."""
    n, m, h = x.shape
    check_shape("y", y, (n, h))
    check_shape("post", post, (n, m))
    check_shape("comb", comb, (n, m, m))
    value = carried(x)
    post, comb = post.type_as(value), comb.type_as(value)
    # One product per row of the batch, all of one shape: no row can see how many others there are.
    return torch.baddbmm(post.unsqueeze(-1) * y.type_as(value).unsqueeze(1), comb.transpose(1, 2), value).type_as(x)


OPS: dict[str, Callable[..., Any]] = {
    "hc_mixes": hc_mixes,
    "hc_coefficients": hc_coefficients,
    "hc_collapse": hc_collapse,
    "hc_expand": hc_expand,
}
