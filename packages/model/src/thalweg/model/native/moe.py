"""Mixture of experts: a router, the routed SwiGLU experts and one shared expert."""

from __future__ import annotations

from dataclasses import dataclass

import torch

from thalweg.kernels import ExpertWeights, Fp8Weight, ReadRows
from thalweg.model.native.state import NativeState


@dataclass(frozen=True, slots=True)
class Router:
    """Picks the experts of every row and their weights: E experts."""

    weight: torch.Tensor
    """bfloat16 [E, h]"""
    bias: torch.Tensor
    """float32 [E], for the choice only."""
    image_bias: torch.Tensor
    """float32 [E], the same for rows of images."""
    experts_per_token: int
    scaling: float

    def __call__(self, rows: torch.Tensor, state: NativeState) -> tuple[torch.Tensor, torch.Tensor]:
        """Expert ids int64 [n, k] (-1 on placeholder rows) and their weights float32 [n, k] for rows [n, h]."""
        ops, batch = state.ops, state.batch
        logits = ops.bf16_linear(rows, self.weight, torch.float32)
        ids, weights = ops.topk_gate(
            logits,
            self.bias,
            self.experts_per_token,
            self.scaling,
            self.image_bias,
            batch.image_mask,
            batch.valid_mask,
        )
        return ids, weights


@dataclass(frozen=True, slots=True)
class MixtureOfExperts:
    """The feed-forward sub-layer: E experts of i columns, and one that all rows visit."""

    layer: int
    router: Router
    gate_up: ExpertWeights
    """E of [2i, h], gate rows first."""
    down: ExpertWeights
    """E of [h, i]"""
    shared_gate_up: Fp8Weight
    shared_down: Fp8Weight
    num_experts: int
    limit: float

    def __call__(self, rows: ReadRows, state: NativeState) -> torch.Tensor:
        """bfloat16 [n, h] for normed rows."""
        ops, quantized = state.ops, rows.quantized
        ids, weights = self.router(rows.rows, state)
        state.record("expert_idx", self.layer, ids)
        state.record("expert_w", self.layer, weights)
        plan = ops.plan_experts(ids, weights, self.num_experts)
        gate_up = ops.expert_linear(quantized, self.gate_up, plan, gather=True)
        products = ops.swiglu_quantize(gate_up, self.limit, plan.row_weights)
        outputs = ops.expert_linear(products, self.down, plan, gather=False)
        shared_products = ops.swiglu_quantize(ops.fp8_linear(quantized, self.shared_gate_up), self.limit, None)
        shared = ops.fp8_linear(shared_products, self.shared_down)
        combined: torch.Tensor = ops.combine_experts(outputs, shared, plan)
        return combined
