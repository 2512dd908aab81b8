"""Routed experts: rows sorted by expert, the products of each expert, and what a token gets from all of its experts."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from typing import Any

import torch
from torch import Tensor

from thalweg.interfaces import ConfigError
from thalweg.kernels.native_formats import Mxfp8Rows
from thalweg.kernels.reference.expert_weights import TILE_BYTES, ExpertWeights, pack_expert_weights
from thalweg.kernels.reference.gemm import grouped_matmul
from thalweg.kernels.reference.numerics import check_count, check_tensor
from thalweg.kernels.reference.quant import MX_GROUP, dequantize_mxfp8

WIDTHS = (8, 16, 64, 128, 256)
"""Rows that one tile of an expert may have."""
PLACE_ALIGNMENT = 8
"""Rows of an expert start at a multiple of this where they are laid out for a device."""


@dataclass(frozen=True, slots=True)
class ExpertPlan:
    """Rows of T tokens with k slots, sorted by expert: A = T * k, the last of which are unused where ids are -1."""

    tokens: Tensor
    """int32 [A] token of each sorted row; -1: unused"""
    row_weights: Tensor
    """float32 [A] weight of each sorted row; 0: unused"""
    positions: Tensor
    """int32 [T, k] sorted row of each slot; -1: none"""
    tiles: Tensor
    """int32 [t, 4]: expert, first sorted row, rows, and the place of the first row if experts start at multiples of 8.
    Tiles of an expert lie together, in order of rows and experts; an unused one is (-1, 0, 0, 0)."""
    num_tiles: Tensor
    """int32 [1] used ones"""
    width: int
    """the most rows of a tile"""
    num_experts: int


def tile_width(num_rows: int, num_experts: int) -> int:
    """Rows of a tile: enough for an average expert and twice the square root more, so that few experts need two tiles,
    which read their weights twice.
    """
    for width in WIDTHS[:-1]:
        spare = width * num_experts - num_rows
        if spare >= 0 and spare * spare >= 4 * num_rows * num_experts:
            return width
    return WIDTHS[-1]


def most_tiles(num_rows: int, num_experts: int, width: int) -> int:
    """Tiles that any distribution of so many rows needs at most."""
    return num_rows // width + min(num_rows, num_experts)


def check_slots(ids: Tensor, weights: Tensor, num_experts: int) -> None:
    """Raises ConfigError unless ids are int64 [T, k], weights float32 [T, k], and there is an expert."""
    if ids.dim() != 2 or ids.dtype != torch.int64:
        raise ConfigError(f"ids are {ids.dtype} {list(ids.shape)}; int64 [T, k] is required")
    if weights.shape != ids.shape or weights.dtype != torch.float32:
        raise ConfigError(
            f"weights are {weights.dtype} {list(weights.shape)}; float32 {list(ids.shape)}, as ids, is required"
        )
    check_count("num_experts", num_experts, 1)


def plan_experts(ids: Tensor, weights: Tensor, num_experts: int) -> ExpertPlan:
    """Sort the slots of tokens by expert, those of an expert in order of token and slot, and cut them into tiles.

    ids: int64 [T, k], -1 = no expert; weights: float32 [T, k]. Raises ConfigError for other shapes or dtypes.
    """
    check_slots(ids, weights, num_experts)
    flat, slots = ids.flatten(), ids.shape[1]
    num_rows, device = flat.shape[0], ids.device
    unused, *counts = torch.bincount(flat + 1, minlength=num_experts + 1).tolist()
    order = torch.argsort(flat, stable=True)[unused:]
    used = order.shape[0]
    tokens = torch.full((num_rows,), -1, dtype=torch.int32, device=device)
    tokens[:used] = (order // max(slots, 1)).int()
    row_weights = torch.zeros(num_rows, device=device)
    row_weights[:used] = weights.flatten()[order]
    positions = torch.full((num_rows,), -1, dtype=torch.int32, device=device)
    positions[order] = torch.arange(used, dtype=torch.int32, device=device)
    width = tile_width(num_rows, num_experts)
    tiles = _tiles(counts, width)
    padding = [(-1, 0, 0, 0)] * (most_tiles(num_rows, num_experts, width) - len(tiles))
    table = torch.tensor([*tiles, *padding], dtype=torch.int32, device=device).view(-1, 4)
    num_tiles = torch.tensor([len(tiles)], dtype=torch.int32, device=device)
    return ExpertPlan(tokens, row_weights, positions.view(ids.shape), table, num_tiles, width, num_experts)


def _tiles(counts: list[int], width: int) -> list[tuple[int, int, int, int]]:
    """Tiles of experts with so many rows each."""
    tiles, first, place = [], 0, 0
    for expert, count in enumerate(counts):
        for start in range(0, count, width):
            tiles.append((expert, first + start, min(width, count - start), place + start))
        first += count
        place += -(-count // PLACE_ALIGNMENT) * PLACE_ALIGNMENT
    return tiles


def check_plan(plan: ExpertPlan) -> None:
    """Raises ConfigError unless the fields of a plan have the shapes and dtypes that `ExpertPlan` states."""
    check_tensor("positions of plan", plan.positions, ("T", "k"), torch.int32)
    rows = plan.positions.numel()
    check_tensor("tokens of plan", plan.tokens, (rows,), torch.int32)
    check_tensor("row_weights of plan", plan.row_weights, (rows,), torch.float32)
    check_tensor("tiles of plan", plan.tiles, ("t", 4), torch.int32)
    check_tensor("num_tiles of plan", plan.num_tiles, (1,), torch.int32)
    if plan.width not in WIDTHS:
        raise ConfigError(f"width of plan is {plan.width}; {', '.join(map(str, WIDTHS))} are accepted")


def check_rows(x: Mxfp8Rows, weights: ExpertWeights, plan: ExpertPlan, gather: bool) -> None:
    """Raises ConfigError unless x has rows of these weights, one per sorted row of the plan or one per token."""
    check_plan(plan)
    check_tensor("tiles of weights", weights.tiles, ("E", "o / 64", "i / 128", TILE_BYTES), torch.uint8)
    columns = weights.in_features
    rows = plan.positions.shape[0] if gather else plan.tokens.shape[0]
    for name, tensor, width in (("codes", x.codes, columns), ("scales", x.scales, columns // MX_GROUP)):
        if tensor.dtype != torch.uint8 or tuple(tensor.shape) != (rows, width):
            raise ConfigError(
                f"{name} of x are {tensor.dtype} {list(tensor.shape)}; uint8 {[rows, width]} is required"
                f" (one row per {'token' if gather else 'sorted row'})"
            )
    if weights.num_experts != plan.num_experts:
        raise ConfigError(f"weights have {weights.num_experts} experts; the plan is for {plan.num_experts}")


def expert_linear(x: Mxfp8Rows, weights: ExpertWeights, plan: ExpertPlan, *, gather: bool) -> Tensor:
    """Each sorted row times the transpose of its expert's weight -> bfloat16 [A, o], from sums in float32.

    gather: sorted row a is the row of its token in x [T, i]; otherwise row a of x [A, i]. Unused rows of the result are
    undefined.
    """
    check_rows(x, weights, plan, gather)
    tiles = plan.tiles[: int(plan.num_tiles)].tolist()
    counts = [0] * plan.num_experts
    for expert, _, rows, _ in tiles:
        counts[expert] += rows
    used = sum(counts)
    values = dequantize_mxfp8(x.codes, x.scales)
    values = values[plan.tokens[:used].long()] if gather else values[:used]
    touched = [expert for expert, count in enumerate(counts) if count]
    result = torch.zeros(plan.tokens.shape[0], weights.out_features, dtype=torch.bfloat16, device=x.codes.device)
    if touched:
        dense = [weights.dequantized(expert) for expert in touched]
        result[:used] = grouped_matmul(values, [counts[expert] for expert in touched], dense).bfloat16()
    return result


def check_outputs(outputs: Tensor, shared: Tensor, plan: ExpertPlan) -> None:
    """Raises ConfigError unless outputs are bfloat16 [A, h] and shared bfloat16 [T, h] of the plan."""
    check_plan(plan)
    check_tensor("outputs", outputs, (plan.positions.numel(), "h"), torch.bfloat16)
    check_tensor("shared", shared, (plan.positions.shape[0], outputs.shape[1]), torch.bfloat16)


def combine_experts(outputs: Tensor, shared: Tensor, plan: ExpertPlan) -> Tensor:
    """What each token gets, bfloat16 [T, h]: outputs [A, h] of its experts in slot order, then shared [T, h].

    Summed in float32 and rounded once. outputs have their weights already.
    """
    check_outputs(outputs, shared, plan)
    positions = plan.positions.long()
    total = torch.zeros(shared.shape, device=shared.device)
    for slot in range(positions.shape[1]):
        row = positions[:, slot, None]
        total = total + torch.where(row < 0, 0, outputs[row[:, 0].clamp(min=0)].float())
    return (total + shared.float()).bfloat16()


OPS: dict[str, Callable[..., Any]] = {
    "pack_expert_weights": pack_expert_weights,
    "plan_experts": plan_experts,
    "expert_linear": expert_linear,
    "combine_experts": combine_experts,
}
