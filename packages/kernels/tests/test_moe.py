"""Routing, replica choice and the clamped SwiGLU against recorded results."""

from __future__ import annotations

import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st

from thalweg.interfaces import ConfigError
from thalweg.kernels.reference.formats import decode_ue8m0
from thalweg.kernels.reference.moe import choose_replicas, gate_scores, psum_valid_rows, route, swiglu, swiglu_psum
from thalweg.kernels.reference.quant import quantize_mxfp8
from thalweg.kernels.testing import VectorLoader


@pytest.mark.parametrize("name", ["gate_16", "gate_384"])
def test_recorded_routings_are_reproduced(name: str, vectors: VectorLoader) -> None:
    data = vectors(f"model/{name}")
    topk, scaling = int(data["topk"]), float(data["scaling"])
    scores = gate_scores(data["logits"])
    assert torch.allclose(scores, data["scores"], rtol=1e-6, atol=0)
    ids, weights = route(scores, data["bias"], topk, scaling, image_bias=data["bias_vl"], image_mask=data["image_mask"])
    assert torch.equal(ids, data["idx"])
    assert torch.allclose(weights, data["weights"], rtol=1e-6, atol=0)
    ids, weights = route(scores, None, topk, scaling)
    assert torch.equal(ids, data["idx_nobias"])
    assert torch.allclose(weights, data["weights_nobias"], rtol=1e-6, atol=0)
    ids, weights = route(scores, data["bias"], topk, scaling, valid_mask=data["valid_mask"])
    assert torch.equal(ids, data["idx_masked"])
    assert torch.allclose(weights, data["weights_masked"], rtol=1e-6, atol=0)


@pytest.mark.parametrize("ep_rank", [0, 5])
def test_recorded_replicas_are_chosen(ep_rank: int, vectors: VectorLoader) -> None:
    data = vectors("kernels/moe_gate_physical")
    ids, weights = route(
        gate_scores(data["logits"]),
        data["bias"],
        int(data["num_topk"]),
        float(data["routed_scaling_factor"]),
        image_bias=data["image_bias"],
        image_mask=data["image_token_mask"],
        valid_mask=data["mask"],
    )
    assert torch.equal(ids, data["unmapped_topk_idx"])
    physical = choose_replicas(ids, data["to_physical_map"], data["logical_count"], ep_rank)
    assert torch.equal(physical, data[f"rank{ep_rank}_topk_idx"])
    assert torch.allclose(weights, data[f"rank{ep_rank}_topk_weights"], rtol=1e-6, atol=0)


@settings(max_examples=40, deadline=None)
@given(st.integers(1, 12), st.integers(1, 5), st.integers(0, 1000))
def test_equal_scores_take_the_lower_ids_first(experts: int, topk: int, seed: int) -> None:
    topk = min(topk, experts)
    levels = torch.randint(1, 4, (6, experts), generator=torch.Generator().manual_seed(seed)).double()
    ids, _ = route(levels, None, topk, 1.0)
    for row, got in zip(levels.tolist(), ids.tolist(), strict=True):
        assert got == sorted(range(experts), key=lambda i: (-row[i], i))[:topk]


def test_the_bias_chooses_but_does_not_weigh() -> None:
    scores = torch.tensor([[1.0, 2.0, 3.0]])
    ids, weights = route(scores, torch.tensor([10.0, 0.0, 0.0]), 2, 1.5)
    assert ids.tolist() == [[0, 2]]
    assert weights[0].tolist() == pytest.approx([1.5 / 4, 1.5 * 3 / 4])


@pytest.mark.parametrize("name", ["swiglu", "swiglu_small_limit"])
@pytest.mark.parametrize("carrier", [torch.float32, torch.float64])
def test_recorded_swiglu_values_are_reproduced(name: str, carrier: torch.dtype, vectors: VectorLoader) -> None:
    data = vectors(f"model/{name}")
    gate, up = data["x"].to(carrier).chunk(2, dim=-1)
    limit = float(data["limit"])
    assert torch.allclose(swiglu(gate, up, limit).float(), data["y_fp32"], rtol=1e-6, atol=1e-7)
    weighted = swiglu(gate, up, limit, data["topk_weights"])
    assert torch.allclose(weighted.float(), data["y_weighted_fp32"], rtol=1e-6, atol=1e-7)


def test_the_gate_is_clamped_from_above_only_and_the_other_half_on_both_sides() -> None:
    gate, up = torch.tensor([[-30.0, 30.0]]), torch.tensor([[20.0, -20.0]])
    y = swiglu(gate, up, 10.0)
    assert float(y[0, 0]) == pytest.approx(-30 * 10 / (1 + 2.718281828**30), rel=1e-5)
    assert float(y[0, 1]) == pytest.approx(-100, rel=1e-4)


def test_the_recorded_prefix_sum_layout_is_reproduced(vectors: VectorLoader) -> None:
    data = vectors("kernels/swiglu_psum")
    ends, alignment = data["psum_num_tokens_per_expert"], int(data["alignment"])
    valid = psum_valid_rows(ends, alignment, data["x"].shape[0])
    assert torch.equal(valid, data["valid_rows"])
    y = swiglu_psum(data["x"], float(data["clamp"]), data["topk_weights"], ends, alignment)
    assert torch.allclose(y[valid], data["y_f32"][valid], rtol=1e-6, atol=1e-7)
    assert bool((y[~valid] == 0).all())
    codes, scales = quantize_mxfp8(data["y_f32"])
    assert torch.equal(codes[valid], data["q"][valid])
    assert torch.equal(decode_ue8m0(scales)[valid], data["sf"][valid])


def test_an_expert_without_tokens_has_no_rows() -> None:
    assert psum_valid_rows(torch.tensor([3, 3, 9]), 4, 12).tolist() == [
        i in (0, 1, 2, 4, 5, 6, 7, 8) for i in range(12)
    ]


def test_routing_weights_and_swiglu_are_differentiable() -> None:
    generator = torch.Generator().manual_seed(0)
    logits = (8 * torch.randn(3, 6, dtype=torch.float64, generator=generator)).requires_grad_()
    gate = torch.randn(3, 4, dtype=torch.float64, generator=generator).requires_grad_()
    up = torch.randn(3, 4, dtype=torch.float64, generator=generator).requires_grad_()

    def compute(logits: torch.Tensor, gate: torch.Tensor, up: torch.Tensor) -> torch.Tensor:
        _, weights = route(gate_scores(logits), None, 2, 1.5)
        return swiglu(gate, up, 10.0, weights[:, 0])

    assert torch.autograd.gradcheck(compute, (logits, gate, up))


def test_scores_of_huge_logits_stay_finite_and_have_finite_gradients() -> None:
    logits = torch.tensor([[900.0, 21.0, 20.0, -90.0]], dtype=torch.float64, requires_grad=True)
    scores = gate_scores(logits)
    assert scores[0, 0] == 30
    scores.sum().backward()
    assert bool(torch.isfinite(logits.grad).all())


def test_bad_routing_arguments_are_refused_by_name() -> None:
    scores = torch.ones(2, 4)
    with pytest.raises(ConfigError, match=r"topk is 5; with 4 experts it must be 1\.\.4"):
        route(scores, None, 5, 1.0)
    with pytest.raises(ConfigError, match=r"bias has shape \[3\]; \[4\] is expected"):
        route(scores, torch.ones(3), 2, 1.0)
    with pytest.raises(ConfigError, match="image_mask was given without image_bias"):
        route(scores, None, 2, 1.0, image_mask=torch.ones(2, dtype=torch.bool))
    with pytest.raises(ConfigError, match=r"valid_mask has shape \[3\]; \[2\] is expected"):
        route(scores, None, 2, 1.0, valid_mask=torch.ones(3, dtype=torch.bool))
    with pytest.raises(ConfigError, match=r"up has shape \[2, 3\]; \[2, 4\] is expected"):
        swiglu(scores, torch.ones(2, 3), 10.0)
    with pytest.raises(ConfigError, match="alignment is 0; it must be positive"):
        psum_valid_rows(torch.tensor([1]), 0, 4)
    with pytest.raises(ConfigError, match="x has 7 columns"):
        swiglu_psum(torch.ones(2, 7), 10.0, torch.ones(2), torch.tensor([2]), 4)
