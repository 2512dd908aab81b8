"""Manifold-constrained hyper-connections: the mixing of m residual streams around a sub-layer."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import torch
from torch import Tensor

from thalweg.interfaces import ConfigError
from thalweg.kernels.reference.gemm import matmul
from thalweg.kernels.reference.numerics import carried, check_shape, sigmoid, split_last, sum_last


def hc_mixes(x: Tensor, fn: Tensor, eps: float) -> Tensor:
    """Raw mixes z [n, (2 + m) m] of the streams x [n, m, h]; fn [(2 + m) m, m * h] carries the norm weight."""
    n, m, h = x.shape
    check_shape("fn", fn, ((2 + m) * m, m * h))
    flat = carried(x).reshape(n, m * h)
    mean_square = sum_last(flat * flat).unsqueeze(-1) / (m * h)
    return (matmul(flat, fn.to(flat.dtype)) * torch.rsqrt(mean_square + eps)).to(x.dtype)


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
    value, scale, base = carried(z), scale.to(carried(z).dtype), base.to(carried(z).dtype)
    pre = sigmoid(value[:, :m] * scale[0] + base[:m]) + eps
    post = 2 * sigmoid(value[:, m : 2 * m] * scale[1] + base[m : 2 * m])
    comb = sinkhorn(split_last(value[:, 2 * m :] * scale[2] + base[2 * m :], m), iters, eps)
    return pre.to(z.dtype), post.to(z.dtype), comb.to(z.dtype)


def sinkhorn(logits: Tensor, iters: int, eps: float) -> Tensor:
    """Rows and columns of softmax(logits [n, m, m]) normalised in turn; `iters` counts the column divisions."""
    comb = torch.exp(logits - logits.amax(-1, keepdim=True).detach())
    comb = comb / comb.sum(-1, keepdim=True) + eps
    comb = comb / comb.sum(-2, keepdim=True).add_(eps)
    for _ in range(iters - 1):
        comb = comb / comb.sum(-1, keepdim=True).add_(eps)
        comb = comb / comb.sum(-2, keepdim=True).add_(eps)
    return comb


def hc_collapse(x: Tensor, pre: Tensor) -> Tensor:
    """Sub-layer input sum_j pre_j X_j [n, h] of x [n, m, h] and pre [n, m], added in stream order."""
    check_shape("pre", pre, tuple(x.shape[:2]))
    value = carried(x)
    return (pre.to(value.dtype).unsqueeze(-1) * value).sum(1).to(x.dtype)


def hc_expand(x: Tensor, y: Tensor, post: Tensor, comb: Tensor) -> Tensor:
    """New streams X_k = post_k y + sum_j comb[j, k] X_j: x [n, m, h], sub-layer output y [n, h] -> [n, m, h]."""
    n, m, h = x.shape
    check_shape("y", y, (n, h))
    check_shape("post", post, (n, m))
    check_shape("comb", comb, (n, m, m))
    value = carried(x)
    post, comb = post.to(value.dtype), comb.to(value.dtype)
    # One product per row of the batch, all of one shape: no row can see how many others there are.
    return torch.baddbmm(post.unsqueeze(-1) * y.to(value.dtype).unsqueeze(1), comb.transpose(1, 2), value).to(x.dtype)


OPS: dict[str, Callable[..., Any]] = {
    "hc_mixes": hc_mixes,
    "hc_coefficients": hc_coefficients,
    "hc_collapse": hc_collapse,
    "hc_expand": hc_expand,
}
