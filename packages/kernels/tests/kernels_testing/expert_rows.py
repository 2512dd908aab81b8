"""Rows of routed experts."""

from __future__ import annotations

import torch
from kernels_testing.expert_cases import random_checkpoint, random_rows, random_slots
from kernels_testing.row_cases import Op, random, rows_of
from torch import Tensor

from thalweg.kernels import Mxfp8Rows, pack_expert_weights, plan_experts
from thalweg.kernels.testing import RowCall

TOKENS, SLOTS, EXPERTS = 65, 2, 16


def by_slot(rows: Tensor, positions: Tensor) -> Tensor:
    """Rows [A, ...] in the order of slots, [T, k, ...]; zero where a slot has none."""
    mine = rows[positions.long().clamp(min=0)]
    return torch.where((positions < 0).view(*positions.shape, *[1] * (rows.dim() - 1)), 0, mine)


@rows_of("pack_expert_weights", counts=(1, 2, 5))
def pack_expert_weights_rows() -> RowCall:
    """Experts are the rows."""
    codes, scales = random_checkpoint(TOKENS, 256, 128)
    return lambda op, ids: op(codes[ids], scales[ids]).tiles


@rows_of("plan_experts", counts=(1, 2, 5, 8, 33))
def plan_experts_rows() -> RowCall:
    """Where rows are depends on the others; which token they are of, and with what weight, does not."""
    ids, weights = random_slots(TOKENS, SLOTS, EXPERTS)

    def call(op: Op, rows: Tensor) -> tuple[Tensor, ...]:
        plan = op(ids[rows], weights[rows], EXPERTS)
        starts = torch.arange(rows.shape[0], device=rows.device)[:, None]
        at_home = by_slot(plan.tokens, plan.positions) == torch.where(plan.positions < 0, 0, starts)
        return at_home, by_slot(plan.row_weights, plan.positions)

    return call


@rows_of("expert_linear", counts=(1, 2, 5, 8, 33), gather=(False, True))
def expert_linear_rows(gather: bool) -> RowCall:
    weights = pack_expert_weights(*random_checkpoint(EXPERTS, 256, 256))
    x, (ids, row_weights) = random_rows(TOKENS, 256), random_slots(TOKENS, SLOTS, EXPERTS)

    def call(op: Op, rows: Tensor) -> Tensor:
        plan = plan_experts(ids[rows], row_weights[rows], EXPERTS)
        mine = Mxfp8Rows(x.codes[rows], x.scales[rows])
        if not gather:
            of = plan.tokens.long().clamp(min=0)
            mine = Mxfp8Rows(mine.codes[of], mine.scales[of])
        return by_slot(op(mine, weights, plan, gather=gather), plan.positions)

    return call


@rows_of("combine_experts", counts=(1, 2, 5, 8, 33))
def combine_experts_rows() -> RowCall:
    ids, weights = random_slots(TOKENS, SLOTS, EXPERTS)
    outputs = random(TOKENS, SLOTS, 256, dtype=torch.bfloat16)
    shared = random(TOKENS, 256, dtype=torch.bfloat16)

    def call(op: Op, rows: Tensor) -> Tensor:
        plan = plan_experts(ids[rows], weights[rows], EXPERTS)
        mine = torch.zeros(plan.tokens.shape[0] + 1, 256, dtype=torch.bfloat16, device=rows.device)
        mine[plan.positions.long()] = outputs[rows]
        result: Tensor = op(mine[:-1], shared[rows], plan)
        return result

    return call
