"""Routed experts on Hopper: plans equal to the reference's, and products close to it."""

from __future__ import annotations

import functools
from collections.abc import Callable
from typing import NamedTuple

import pytest
import torch
from kernels_testing.expert_cases import random_checkpoint, random_rows, random_slots
from torch import Tensor

from thalweg.interfaces import ConfigError
from thalweg.kernels import (
    ExpertPlan,
    ExpertWeights,
    Mxfp8Rows,
    SyncGuard,
    bind,
    cuda_sync_mode,
    pack_expert_weights,
)
from thalweg.kernels.sm90 import experts_linear, experts_plan
from thalweg.kernels.testing import relative_error, same_bits

pytestmark = pytest.mark.gpu

reference = bind("cpu")
kernels = bind("sm90")
SIZES = [(256, 256), (256, 128), (512, 2304), (256, 5120)]
Linear = Callable[..., Tensor]
LINEARS: list[Linear] = [experts_linear.expert_linear, experts_linear.expert_linear_invariant]


class Slots(NamedTuple):
    """Which experts tokens have, and how many there are."""

    ids: Tensor
    num_experts: int

    def plans(self, device: torch.device) -> tuple[ExpertPlan, ExpertPlan]:
        """By the kernel, and by the reference."""
        weights = torch.rand(self.ids.shape, generator=torch.Generator().manual_seed(self.ids.numel()))
        there = kernels.plan_experts(self.ids.to(device), weights.to(device), self.num_experts)
        return there, reference.plan_experts(self.ids, weights, self.num_experts)


def counted(*counts: int) -> Slots:
    """Experts with so many rows each, shuffled over tokens of one slot."""
    ids = torch.cat([torch.full((count,), expert) for expert, count in enumerate(counts)])
    shuffled = ids[torch.randperm(ids.shape[0], generator=torch.Generator().manual_seed(len(counts)))]
    return Slots(shuffled.view(-1, 1), len(counts))


CHOICES = {
    "few": Slots(random_slots(7, 2, 16)[0], 16),
    "many": Slots(random_slots(150, 6, 48, seed=1)[0], 48),
    "one row": Slots(torch.tensor([[3]]), 16),
    "none": Slots(torch.full((5, 2), -1), 16),
    "no token": Slots(torch.empty(0, 2, dtype=torch.int64), 16),
    "one expert for all": Slots(torch.full((45, 1), 2), 5),
    "edges of tiles": counted(0, 7, 8, 9, 1, 0, 15, 16, 17, 31, 32, 33, 0),
    "edges of wide tiles": counted(63, 64, 65, 127, 0, 128, 129),
    "edges of the widest tiles": counted(255, 0, 256, 257, 513, 1),
}


def on(device: torch.device, rows: Mxfp8Rows) -> Mxfp8Rows:
    return Mxfp8Rows(*(part.to(device) for part in rows))


@pytest.mark.parametrize("name", CHOICES)
def test_a_plan_is_the_references(hopper: torch.device, name: str) -> None:
    found, expected = CHOICES[name].plans(hopper)
    for field in ("tokens", "row_weights", "positions", "tiles", "num_tiles"):
        assert torch.equal(getattr(found, field).cpu(), getattr(expected, field)), field
    assert (found.width, found.num_experts) == (expected.width, expected.num_experts)


@pytest.mark.parametrize(("tokens", "experts"), [(64, 384), (256, 384), (3000, 384), (20000, 16)])
def test_a_large_plan_is_the_references(hopper: torch.device, tokens: int, experts: int) -> None:
    found, expected = Slots(random_slots(tokens, 6, experts, seed=tokens)[0], experts).plans(hopper)
    for field in ("tokens", "row_weights", "positions", "tiles", "num_tiles"):
        assert torch.equal(getattr(found, field).cpu(), getattr(expected, field)), field


@functools.cache
def packed(sizes: tuple[int, int], num_experts: int, device: torch.device) -> ExpertWeights:
    return pack_expert_weights(*(part.to(device) for part in random_checkpoint(num_experts, *sizes)))


@pytest.mark.parametrize("gather", [False, True])
@pytest.mark.parametrize("sizes", SIZES)
@pytest.mark.parametrize("name", CHOICES)
@pytest.mark.parametrize("linear", LINEARS, ids=lambda linear: linear.__name__)
def test_products_are_close_to_the_references(
    hopper: torch.device, linear: Linear, name: str, sizes: tuple[int, int], gather: bool
) -> None:
    plan, _ = CHOICES[name].plans(hopper)
    used = int((plan.tokens >= 0).sum())
    x = on(hopper, random_rows(plan.positions.shape[0] if gather else plan.tokens.shape[0], sizes[1]))
    weights = packed(sizes, plan.num_experts, hopper)
    expected = reference.expert_linear(x, weights, plan, gather=gather)[:used].float()
    found = linear(x, weights, plan, gather=gather)
    assert found.shape == (plan.tokens.shape[0], sizes[0])
    assert relative_error(found[:used], expected) <= 4e-3
    if used:
        assert (found[:used].float() - expected).abs().max() <= 0.02 * expected.abs().max()


@pytest.mark.parametrize("linear", LINEARS, ids=lambda linear: linear.__name__)
def test_scales_far_apart_are_exact(hopper: torch.device, linear: Linear) -> None:
    """One code per group of columns, and one group per row of x: nothing is rounded but the result."""
    codes, scales = torch.zeros(1, 256, 64, dtype=torch.uint8), torch.randint(90, 129, (1, 256, 4)).to(torch.uint8)
    codes[0, :, ::16] = torch.arange(256).view(-1, 1).to(torch.uint8) % 16
    weights = reference.pack_expert_weights(codes, scales)
    x = Mxfp8Rows(torch.zeros(4, 128, dtype=torch.uint8), torch.randint(100, 140, (4, 4)).to(torch.uint8))
    for row in range(4):
        x.codes[row, row * 32] = 0x38 + row  # one group of columns only
    plan, expected_plan = Slots(torch.zeros(4, 1, dtype=torch.int64), 1).plans(hopper)
    expected = reference.expert_linear(x, weights, expected_plan, gather=True)
    found = linear(on(hopper, x), ExpertWeights(weights.tiles.to(hopper)), plan, gather=True)
    assert same_bits(found.cpu(), expected)


@pytest.mark.parametrize("sizes", [(256, 256), (512, 2304)])
def test_the_invariant_product_has_the_same_bits_in_tiles_of_any_width(
    hopper: torch.device, sizes: tuple[int, int]
) -> None:
    x, weights = on(hopper, random_rows(700, sizes[1])), packed(sizes, 2, hopper)
    whole: Tensor | None = None
    for count in (700, 500, 390, 130, 70, 33, 20, 9, 5, 1):
        ids = torch.zeros(count, 1, dtype=torch.int64, device=hopper)
        plan = kernels.plan_experts(ids, torch.ones(count, 1, device=hopper), 2)
        mine = Mxfp8Rows(x.codes[:count], x.scales[:count])
        found = experts_linear.expert_linear_invariant(mine, weights, plan, gather=True)
        whole = found if whole is None else whole
        assert same_bits(found, whole[:count]), count


@pytest.mark.parametrize("name", ["few", "many", "none", "no token"])
@pytest.mark.parametrize("width", [8, 256, 5120])
def test_a_token_gets_the_references_sum(hopper: torch.device, name: str, width: int) -> None:
    plan, expected_plan = CHOICES[name].plans(hopper)
    generator = torch.Generator().manual_seed(width)
    outputs = torch.randn(plan.tokens.shape[0], width, generator=generator).bfloat16()
    shared = torch.randn(plan.positions.shape[0], width, generator=generator).bfloat16()
    outputs[int((expected_plan.tokens >= 0).sum()) :] = torch.nan
    expected = reference.combine_experts(outputs, shared, expected_plan)
    found = kernels.combine_experts(outputs.to(hopper), shared.to(hopper), plan)
    assert same_bits(found.cpu(), expected)


def test_a_graph_follows_what_its_inputs_hold(hopper: torch.device) -> None:
    x, weights = on(hopper, random_rows(24, 256)), packed((256, 256), 16, hopper)
    ids, row_weights = (part.to(hopper) for part in random_slots(24, 2, 16))
    shared = torch.zeros(24, 256, dtype=torch.bfloat16, device=hopper)

    def step() -> Tensor:
        plan = kernels.plan_experts(ids, row_weights, 16)
        total: Tensor = kernels.combine_experts(kernels.expert_linear(x, weights, plan, gather=True), shared, plan)
        return total

    step()
    graph = torch.cuda.CUDAGraph()
    with SyncGuard(*cuda_sync_mode()).forbid(), torch.cuda.graph(graph):
        total = step()
    for seed in (5, 6):
        ids.copy_(random_slots(24, 2, 16, seed=seed)[0])
        graph.replay()
        assert same_bits(total, step())


def test_tensors_that_kernels_cannot_take_are_refused(hopper: torch.device) -> None:
    plan, _ = CHOICES["few"].plans(hopper)
    weights = packed((256, 256), 16, torch.device("cpu"))
    with pytest.raises(ConfigError, match=r"weights on cpu, .* one CUDA device is required"):
        kernels.expert_linear(on(hopper, random_rows(7, 256)), weights, plan, gather=True)
    narrow = torch.zeros(14, 12, dtype=torch.bfloat16, device=hopper)
    with pytest.raises(ConfigError, match="outputs have 12 columns; a multiple of 8 is required"):
        kernels.combine_experts(narrow, narrow[:7], plan)


@pytest.mark.parametrize("module", [experts_plan, experts_linear])
def test_examples_compile(hopper: torch.device, module: object) -> None:
    for build in module.COMPILE_EXAMPLES.values():  # type: ignore[attr-defined]
        build("sm_90a")
