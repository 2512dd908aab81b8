"""Experts of a training pass: all of them for every row, weight 0 where one was not chosen.

With sixteen experts two batched products of everything cost less than sorting rows by expert, and nothing is read back.
"""

from __future__ import annotations

import torch
from tools.train.common.compiled import Compiled
from torch import Tensor

from thalweg.model.metadata import ForwardBatch
from thalweg.model.moe import MixtureOfExperts
from thalweg.model.trace import Trace


class DenseExperts(MixtureOfExperts):
    """The feed-forward sub-layer as two products over all experts, the shared one last."""

    def __call__(self, hidden: Tensor, batch: ForwardBatch, trace: Trace | None) -> Tensor:
        """hidden: [n, h] normed rows."""
        ids, weights = self._router(hidden, batch)
        gate_up = torch.cat(self._gate_up)
        down = torch.cat(self._down, dim=1)
        joined = torch.nn.functional.linear(hidden, gate_up)
        inner = weighted_swiglu(joined, ids, weights, len(self._down), self._limit)
        output: Tensor = torch.nn.functional.linear(inner, down)
        return output


@Compiled
def weighted_swiglu(joined: Tensor, ids: Tensor, weights: Tensor, experts: int, limit: float) -> Tensor:
    """[n, experts * i] of joined [n, experts * 2 i], gate before up for each expert; the last expert has weight 1.

    ids: int64 [n, k], -1 for none, weights: [n, k]. A product is multiplied with the weight of its expert, 0 where the
    row did not choose it.
    """
    pairs = joined.view(joined.shape[0], experts, 2, -1).float()
    gate = pairs[:, :, 0].clamp(max=limit)
    up = pairs[:, :, 1].clamp(min=-limit, max=limit)
    chosen = ids.unsqueeze(-1) == torch.arange(experts, device=ids.device)
    routed = torch.where(chosen, weights.unsqueeze(-1), 0.0).sum(1)
    shared = torch.arange(experts, device=ids.device) == experts - 1
    weight = torch.where(shared, 1.0, routed)
    product: Tensor = gate * torch.sigmoid(gate) * up * weight.unsqueeze(-1)
    return product.flatten(1).to(joined.dtype)


@Compiled
def route_rows(scores: Tensor, bias: Tensor, topk: int, scaling: float) -> tuple[Tensor, Tensor, Tensor]:
    """Expert ids int64 [n, topk], their weights float32 [n, topk], and how many rows each expert has, float32 [E].

    scores: float32 [n, E]; bias: [E], for the choice only. Of equal scores the first is taken.
    """
    experts = torch.arange(scores.shape[1], device=scores.device)
    left = scores.detach() + bias.detach()
    ids, selected, load = [], [], torch.zeros_like(bias)
    for _ in range(topk):
        best = left.argmax(-1)
        chosen = best.unsqueeze(-1) == experts
        left = torch.where(chosen, -torch.inf, left)
        ids.append(best)
        selected.append(torch.where(chosen, scores, 0.0).sum(-1))
        load = load + chosen.float().sum(0)
    weights = torch.stack(selected, -1)
    return torch.stack(ids, -1), weights / (weights.sum(-1, keepdim=True) + 1e-20) * scaling, load
