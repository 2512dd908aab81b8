"""Matrix products whose results stay in single precision: routing, hyper-connections, pooling scores."""

from __future__ import annotations

from typing import Any

import torch
from torch import Tensor


class _WideProduct(torch.autograd.Function):
    """x [n, K] times the transpose of weight [N, K], accumulated and returned in float32."""

    @staticmethod
    def forward(ctx: Any, x: Tensor, weight: Tensor) -> Tensor:
        ctx.save_for_backward(x, weight)
        if x.is_cuda and x.dtype == torch.bfloat16:
            return torch.mm(x, weight.t(), out_dtype=torch.float32)
        return x.float() @ weight.float().t()

    @staticmethod
    def backward(ctx: Any, gradient: Tensor) -> tuple[Tensor, Tensor]:
        x, weight = ctx.saved_tensors
        gradient = gradient.to(x.dtype)
        return gradient @ weight, gradient.t() @ x


def wide_product(x: Tensor, weight: Tensor) -> Tensor:
    """float32 [n, N] of x [n, K] and weight [N, K], which is rounded to the dtype of x."""
    product: Tensor = _WideProduct.apply(x, weight.to(x.dtype))  # type: ignore[no-untyped-call]
    return product
