"""Mixture of experts: a router, the routed SwiGLU experts and one shared expert."""

from __future__ import annotations

import torch

from thalweg.model.metadata import ForwardBatch
from thalweg.model.numerics import Numerics
from thalweg.model.trace import Trace


class Router:
    """Picks the experts of every row and their weights."""

    def __init__(
        self,
        weight: torch.Tensor,
        bias: torch.Tensor,
        image_bias: torch.Tensor,
        *,
        experts_per_token: int,
        scaling: float,
        numerics: Numerics,
    ) -> None:
        """weight: [E, h]; bias, image_bias: [E], used for the choice only."""
        self._weight = weight
        self._bias = bias
        self._image_bias = image_bias
        self._experts_per_token = experts_per_token
        self._scaling = scaling
        self._numerics = numerics

    def __call__(self, hidden: torch.Tensor, batch: ForwardBatch) -> tuple[torch.Tensor, torch.Tensor]:
        """Expert ids int64 [n, k] (-1 on placeholder rows) and their weights [n, k] for hidden [n, h]."""
        n, ops = self._numerics, self._numerics.ops
        scores = n.f32(ops.gate_scores(n.f32(ops.matmul(hidden, self._weight))))
        ids, weights = ops.route(
            scores,
            self._bias,
            self._experts_per_token,
            self._scaling,
            image_bias=self._image_bias,
            image_mask=batch.image_mask,
            valid_mask=batch.valid_mask,
        )
        return ids, n.f32(weights)


class MixtureOfExperts:
    """The feed-forward sub-layer."""

    def __init__(
        self,
        layer: int,
        router: Router,
        gate_up: tuple[torch.Tensor, ...],
        down: tuple[torch.Tensor, ...],
        shared_gate_up: torch.Tensor,
        shared_down: torch.Tensor,
        *,
        limit: float,
        numerics: Numerics,
    ) -> None:
        """gate_up: E of [2i, h], gate rows first; down: E of [h, i]; the shared expert is one more of each."""
        self._layer = layer
        self._router = router
        self._gate_up = (*gate_up, shared_gate_up)
        self._down = (*down, shared_down)
        self._limit = limit
        self._numerics = numerics

    def __call__(self, hidden: torch.Tensor, batch: ForwardBatch, trace: Trace | None) -> torch.Tensor:
        """hidden: [n, h] normed rows."""
        ids, weights = self._router(hidden, batch)
        if trace is not None:
            trace.record("expert_idx", self._layer, ids)
            trace.record("expert_w", self._layer, weights)
        routed, shared = self._outputs(hidden, ids, weights)
        # Slot by slot, then the shared expert: a fixed order, whatever the batch.
        total = routed[:, 0]
        for slot in range(1, ids.shape[1]):
            total = total + routed[:, slot]
        return self._numerics.bf16(total + shared)

    def _outputs(
        self, hidden: torch.Tensor, ids: torch.Tensor, weights: torch.Tensor
    ) -> tuple[torch.Tensor, torch.Tensor]:
        """Routed outputs per (row, slot) [n, k, h], zero where no expert was chosen, and shared outputs [n, h].

        Rows are sorted by expert; the shared expert is one more, which all rows visit with weight 1. Only the products
        run expert by expert, all that is elementwise runs once.
        """
        n, ops = self._numerics, self._numerics.ops
        num_rows, slots = ids.shape
        unused, *counts = torch.bincount(ids.flatten() + 1, minlength=len(self._down)).tolist()
        order = torch.argsort(ids.flatten(), stable=True)[unused:]
        counts.append(num_rows)
        rows = torch.cat([order // slots, torch.arange(num_rows, device=ids.device)])
        row_weights = torch.cat([weights.flatten()[order], weights.new_ones(num_rows)])
        gate, up = n.bf16(ops.grouped_matmul(n.mxfp8(hidden)[rows], counts, self._gate_up)).chunk(2, dim=-1)
        products = n.mxfp8(n.f32(ops.swiglu(gate, up, self._limit, row_weights)))
        outputs = n.bf16(ops.grouped_matmul(products, counts, self._down))
        routed = outputs.new_zeros(num_rows * slots, outputs.shape[1]).index_copy(0, order, outputs[:-num_rows])
        return routed.view(num_rows, slots, outputs.shape[1]), outputs[-num_rows:]
