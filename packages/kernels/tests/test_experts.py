"""Packed weights of experts, the order of rows, products and sums, against the checkpoint's tensors."""

from __future__ import annotations

import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st
from kernels_testing.expert_cases import product, random_checkpoint, random_rows, random_slots

from thalweg.interfaces import ConfigError
from thalweg.kernels import ExpertWeights, Mxfp8Rows, bind, pack_expert_weights, plan_experts
from thalweg.kernels.reference.experts import most_tiles, tile_width
from thalweg.kernels.reference.quant import dequantize_mxfp4

ops = bind("cpu", batch_invariant=True)


def test_packed_weights_are_those_of_the_checkpoint() -> None:
    codes, scales = random_checkpoint(3, 256, 256)
    weights = pack_expert_weights(codes, scales)
    assert (weights.num_experts, weights.out_features, weights.in_features) == (3, 256, 256)
    for expert in range(3):
        assert torch.equal(weights.dequantized(expert), dequantize_mxfp4(codes[expert], scales[expert]))


def test_a_word_of_packed_weights_is_two_shifts_away_from_e4m3() -> None:
    codes, scales = random_checkpoint(1, 256, 128)
    words = pack_expert_weights(codes, scales).tiles[0, :, 0, :4096].reshape(16, 2, 8, 4, 4, 4)
    first = words & 0x9C
    second = (words << 2 & 0x8C) | (words >> 2 & 0x10)
    values = dequantize_mxfp4(codes[0], torch.full_like(scales[0], 127)).view(16, 2, 8, 4, 2, 4, 4)
    for half, found in enumerate((first, second)):
        decoded = found.contiguous().view(torch.float8_e4m3fn).float() * 64
        assert torch.equal(decoded, values[:, :, :, :, half].transpose(3, 4))


def test_experts_can_be_stored_one_by_one() -> None:
    codes, scales = random_checkpoint(2, 256, 128)
    weights = ExpertWeights.empty(2, 256, 128, "cpu")
    for expert in (1, 0):
        weights.store(expert, codes[expert], scales[expert])
    assert torch.equal(weights.tiles, pack_expert_weights(codes, scales).tiles)


@given(st.integers(0, 40), st.integers(1, 4), st.integers(4, 20), st.integers(0, 99))
@settings(max_examples=40)
def test_a_plan_sorts_slots_by_expert_and_keeps_their_order(tokens: int, slots: int, experts: int, seed: int) -> None:
    ids, weights = random_slots(tokens, slots, experts, seed, unused=0.3)
    plan = plan_experts(ids, weights, experts)
    used = [(int(ids[t, s]), t, s) for t in range(tokens) for s in range(slots) if ids[t, s] >= 0]
    used.sort()
    assert plan.tokens[: len(used)].tolist() == [token for _, token, _ in used]
    assert plan.tokens[len(used) :].tolist() == [-1] * (tokens * slots - len(used))
    for row, (_, token, slot) in enumerate(used):
        assert plan.positions[token, slot] == row
        assert plan.row_weights[row] == weights[token, slot]
    covered = [(expert, row) for expert, first, rows, _ in plan.tiles.tolist() for row in range(first, first + rows)]
    assert covered == [(expert, row) for row, (expert, _, _) in enumerate(used)]
    assert plan.tiles.shape[0] == most_tiles(tokens * slots, experts, plan.width)
    assert plan.num_tiles.tolist() == [int((plan.tiles[:, 0] >= 0).sum())]
    places = [place for _, _, rows, place in plan.tiles.tolist() if rows]
    assert all(place % 8 == 0 for place in places)
    assert places == sorted(set(places))


@pytest.mark.parametrize("gather", [False, True])
def test_products_are_those_of_the_rows_experts(gather: bool) -> None:
    checkpoint, x = random_checkpoint(5, 256, 128), random_rows(12, 128)
    ids, weights = random_slots(12, 2, 5, unused=0.2)
    plan = plan_experts(ids, weights, 5)
    rows = x if gather else Mxfp8Rows(*(part[plan.tokens.long().clamp(min=0)] for part in x))
    outputs = ops.expert_linear(rows, pack_expert_weights(*checkpoint), plan, gather=gather)
    for token, slot in (ids >= 0).nonzero().tolist():
        expected = product(x, checkpoint, token, int(ids[token, slot]))
        found = outputs[plan.positions[token, slot].long()].double()
        assert (found - expected).norm() <= 4e-3 * expected.norm()


def test_a_token_gets_its_experts_and_the_shared_one() -> None:
    ids, weights = torch.tensor([[1, -1], [0, 1], [-1, -1]]), torch.ones(3, 2)
    plan = plan_experts(ids, weights, 2)
    outputs = torch.tensor([[1.0], [2], [4], [torch.nan]] + [[torch.nan]] * 2).expand(6, 64).bfloat16()
    shared = torch.full((3, 64), 0.5).bfloat16()
    combined = ops.combine_experts(outputs, shared, plan)
    assert combined[:, 0].tolist() == [2.5, 5.5, 0.5]


def test_no_rows_at_all() -> None:
    plan = plan_experts(torch.empty(0, 6, dtype=torch.int64), torch.empty(0, 6), 4)
    weights = pack_expert_weights(*random_checkpoint(4, 256, 128))
    outputs = ops.expert_linear(random_rows(0, 128), weights, plan, gather=True)
    assert outputs.shape == (0, 256)
    assert ops.combine_experts(outputs, outputs, plan).shape == (0, 256)


def test_tiles_are_wide_enough_for_the_average_and_a_little_more() -> None:
    rows_each = {1: 8, 4: 8, 5: 16, 9: 16, 10: 64, 49: 64, 50: 128, 107: 128, 108: 256, 1000: 256}
    assert {rows: tile_width(384 * rows, 384) for rows in rows_each} == rows_each


def test_errors_name_what_is_wrong() -> None:
    codes, scales = random_checkpoint(2, 256, 128)
    with pytest.raises(ConfigError, match="out_features of an expert is 96; it must be a positive multiple of 256"):
        ExpertWeights.empty(2, 96, 128, "cpu")
    with pytest.raises(
        ConfigError, match=r"scales of an expert are torch.uint8 \[256, 3\]; uint8 \[256, 4\] is required"
    ):
        pack_expert_weights(codes, scales[:, :, :3])
    with pytest.raises(ConfigError, match=r"codes are \[256, 64\] and scales \[256, 4\]; \[E, o, i / 2\]"):
        pack_expert_weights(codes[0], scales[0])
    ids, slot_weights = random_slots(3, 2, 4)
    with pytest.raises(ConfigError, match=r"ids are torch.int32 \[3, 2\]; int64 \[T, k\] is required"):
        plan_experts(ids.int(), slot_weights, 4)
    with pytest.raises(ConfigError, match=r"weights are torch.float32 \[3, 1\]; float32 \[3, 2\], as ids"):
        plan_experts(ids, slot_weights[:, :1], 4)
    with pytest.raises(ConfigError, match="num_experts is 0; an integer from 1 to 2147483647 is accepted"):
        plan_experts(ids, slot_weights, 0)
    plan, weights = plan_experts(ids, slot_weights, 4), pack_expert_weights(codes, scales)
    with pytest.raises(ConfigError, match="weights have 2 experts; the plan is for 4"):
        ops.expert_linear(random_rows(3, 128), weights, plan, gather=True)
    with pytest.raises(ConfigError, match=r"uint8 \[6, 128\] is required \(one row per sorted row\)"):
        ops.expert_linear(random_rows(3, 128), weights, plan, gather=False)
    with pytest.raises(ConfigError, match=r"shared has dtype torch.float32; torch.bfloat16"):
        ops.combine_experts(torch.zeros(6, 64).bfloat16(), torch.zeros(3, 64), plan)
