"""Ops of the draft layers in training: differentiable, for many blocks at once, without read-backs.

A whole training step can be recorded in a CUDA graph. What is not here is the reference.
"""

from __future__ import annotations

import torch
from tools.train.backbone import experts, rows, streams
from torch import Tensor

from thalweg.kernels import BoundOps, default_registry


class DraftOps(BoundOps):
    """Torch ops for any device."""

    hc_mixes = staticmethod(streams.mixes)
    hc_coefficients = staticmethod(streams.coefficients)
    hc_collapse = staticmethod(streams.collapse)
    hc_expand = staticmethod(streams.expand)
    rms_norm = staticmethod(rows.rms_norm)
    apply_rope = staticmethod(rows.apply_rope)
    gate_scores = staticmethod(rows.gate_scores)
    matmul = staticmethod(torch.nn.functional.linear)

    def __init__(self) -> None:
        super().__init__(default_registry(), "cpu", {}, False, None, {})
        self.loads: list[tuple[Tensor, Tensor]] = []
        """Selection bias and rows per expert, float32 [E] each, of every layer since the list was last cleared."""

    def route(
        self, scores: Tensor, bias: Tensor, topk: int, scaling: float, **masks: Tensor | None
    ) -> tuple[Tensor, Tensor]:
        """As the reference: rows of a draft block are text, and in training all are somebody's."""
        ids, weights, load = experts.route_rows(scores, bias, topk, scaling)
        self.loads.append((bias, load))
        return ids, weights

    def sparse_attention(self, q: Tensor, keys: Tensor, indices: Tensor, sink: Tensor, scale: float) -> Tensor:
        """[n, H, D] of q [n, H, D] over rows `indices` [n, K] of keys [S, D], -1 for none; values are the keys."""
        # index_select, because its gradient adds rows up where they lie; that of indexing sorts them first.
        gathered = keys.index_select(0, indices.clamp(min=0).flatten()).view(*indices.shape, -1)
        logits = (q @ gathered.mT * scale).masked_fill(indices.unsqueeze(1) < 0, -torch.inf)
        level = torch.maximum(logits.detach().amax(-1), sink.detach()).unsqueeze(-1)
        mass = torch.exp(logits - level)
        total = mass.sum(-1, keepdim=True) + torch.exp(sink.unsqueeze(-1) - level)
        return (mass / total) @ gathered

    def confidence(self, hidden: Tensor, markov: Tensor, weight: Tensor, temperature: float) -> Tensor:
        """float32 [n] of hidden [n, h], the Markov rows [n, r] before them, and weight [h + r]."""
        logit = torch.cat([hidden, markov], dim=-1) @ weight
        return torch.sigmoid((logit / temperature).clamp(-60, 60)).float()
