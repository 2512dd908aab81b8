"""The experts of a draft layer as a few large products: at eight experts that beats sorting rows by expert."""

from __future__ import annotations

import torch
from torch import Tensor

from thalweg.model.moe import MixtureOfExperts


class DenseExperts(MixtureOfExperts):
    """Every expert sees every row, and those that were not chosen count nothing. Nothing is read back."""

    def outputs(self, hidden: Tensor, ids: Tensor, weights: Tensor) -> tuple[Tensor, Tensor]:
        """The sum of the chosen experts' outputs [n, 1, h], and the shared expert's [n, h]; all ids are experts."""
        ops, matmul = self._numerics.ops, torch.nn.functional.linear
        num_rows, num_experts = len(hidden), len(self._down)
        routed_shares = weights.new_zeros(num_rows, num_experts - 1).scatter(1, ids, weights)
        shares = torch.cat([routed_shares, weights.new_ones(num_rows, 1)], dim=1)
        gate, up = matmul(hidden, torch.cat(self._gate_up)).view(num_rows, num_experts, 2, -1).unbind(2)
        products = ops.swiglu(gate, up, self._limit, shares)
        routed = matmul(products[:, :-1].flatten(1), torch.cat(self._down[:-1], dim=1))
        return routed.unsqueeze(1), matmul(products[:, -1], self._down[-1])
