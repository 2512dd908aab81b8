"""The doubly stochastic mix of hyper-connections, with a gradient that undoes the divisions one by one.

Written with plain autograd, twenty iterations are some eighty small kernels forward and more backward. Here every
division keeps its denominator d. From the output y = x / d, with d the sum of x over a row or column plus eps, follow
x = y d and dx = (dy - sum(dy y)) / d, so that nothing else needs to be kept.
"""

from __future__ import annotations

from typing import Any

import torch
from torch import Tensor

ROWS, COLUMNS = -1, -2
"""The axis that a division sums over."""


def sinkhorn(logits: Tensor, iterations: int, eps: float) -> Tensor:
    """softmax(logits) + eps with columns and rows normalised in turn: float32 [n, m, m], columns `iterations` times."""
    carry: Tensor = _Sinkhorn.apply(logits, iterations, eps)  # type: ignore[no-untyped-call]
    return carry


class _Sinkhorn(torch.autograd.Function):
    @staticmethod
    def forward(ctx: Any, logits: Tensor, iterations: int, eps: float) -> Tensor:
        if logits.is_cuda:
            from tools.train.backbone import sinkhorn_triton as steps
        else:
            steps = _Steps  # type: ignore[assignment]
        ctx.steps, ctx.eps = steps, eps
        carry, denominators = steps.forward(logits.contiguous(), iterations, eps)
        ctx.save_for_backward(carry, denominators)
        return carry

    @staticmethod
    def backward(ctx: Any, gradient: Tensor) -> tuple[Tensor, None, None]:
        carry, denominators = ctx.saved_tensors
        return ctx.steps.backward(carry, denominators, gradient.contiguous(), ctx.eps), None, None


class _Steps:
    """The divisions in plain tensors; `sinkhorn_triton` has the same two functions as one kernel each."""

    @staticmethod
    def forward(logits: Tensor, iterations: int, eps: float) -> tuple[Tensor, Tensor]:
        """The carry, and denominators [2 iterations - 1, m, n]: columns, then rows and columns in turn."""
        carry = torch.softmax(logits, -1) + eps
        denominators = []
        for step in range(2 * iterations - 1):
            axis = ROWS if step % 2 else COLUMNS
            total = carry.sum(axis, keepdim=True) + eps
            carry = carry / total
            denominators.append(total.squeeze(axis).t())
        return carry, torch.stack(denominators)

    @staticmethod
    def backward(carry: Tensor, denominators: Tensor, gradient: Tensor, eps: float) -> Tensor:
        """The gradient of the logits."""
        for step in reversed(range(len(denominators))):
            axis = ROWS if step % 2 else COLUMNS
            total = denominators[step].t().unsqueeze(axis)
            gradient = (gradient - (gradient * carry).sum(axis, keepdim=True)) / total
            carry = carry * total
        softmax = carry - eps
        return softmax * (gradient - (gradient * softmax).sum(ROWS, keepdim=True))
