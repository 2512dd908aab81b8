"""The numbers of a training pass: plain mode, activations in one low precision, everything delicate in float32."""

from __future__ import annotations

import torch
from tools.train.backbone.ops import TrainingOps
from torch import Tensor

from thalweg.model.numerics import Numerics


class TrainingNumerics(Numerics):
    """`plain` numerics whose bfloat16 points really are bfloat16, or `activations`: float32 where that is asked for."""

    __slots__ = ("activations",)

    def __init__(self, ops: TrainingOps, activations: torch.dtype) -> None:
        super().__init__("plain", "float32", ops)
        self.activations = activations

    def bf16(self, x: Tensor) -> Tensor:
        """In the dtype of activations."""
        return x.to(self.activations)

    def f32(self, x: Tensor) -> Tensor:
        """In float32."""
        return x.float()

    def linear(self, x: Tensor, weight: Tensor) -> Tensor:
        """x [n, i] times weight [o, i], both in the dtype of x."""
        return torch.nn.functional.linear(x, weight.to(x.dtype))
