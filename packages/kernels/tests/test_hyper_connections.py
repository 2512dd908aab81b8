"""Hyper-connections: recorded sub-layers, the Sinkhorn order, and what mixing keeps."""

from __future__ import annotations

import pytest
import torch

from thalweg.interfaces import ConfigError
from thalweg.kernels.reference.hyper_connections import hc_coefficients, hc_collapse, hc_expand, hc_mixes, sinkhorn
from thalweg.kernels.reference.norm import rms_norm
from thalweg.kernels.reference.numerics import round_bf16
from thalweg.kernels.testing import VectorLoader, bf16_ulps


@pytest.mark.parametrize("carrier", [torch.float32, torch.float64])
@pytest.mark.parametrize("name", ["mhc_shifted_a", "mhc_shifted_b"])
def test_three_recorded_sub_layers_are_reproduced(name: str, carrier: torch.dtype, vectors: VectorLoader) -> None:
    data = vectors(f"model/{name}")
    eps, iters = float(data["norm_eps"]), int(data["iters"])
    trunk = data["trunk0"].to(carrier)
    streams = trunk.shape[1]
    assert bf16_ulps(trunk, data["emb"].unsqueeze(1).expand(-1, streams, -1)) == 0
    pre = torch.zeros(trunk.shape[0], streams, dtype=carrier)
    pre[:, 0] = 1
    post = comb = torch.empty(0)
    for step in range(3):
        if step:
            trunk = round_bf16(hc_expand(trunk, data[f"s{step}_sublayer_out_prev"].to(carrier), post, comb))
            assert bf16_ulps(trunk, data[f"s{step}_trunk"]) == 0
        mixes = hc_mixes(trunk, data[f"fn{step}"].to(carrier), eps)
        layer_input = round_bf16(hc_collapse(trunk, pre))
        if step == 0:
            assert torch.allclose(mixes.float(), data["s0_mixes"], rtol=1e-5, atol=1e-6)
            assert bf16_ulps(layer_input, data["s0_layer_input"]) == 0
        normed = rms_norm(layer_input, data[f"normw{step}"].to(carrier), eps)
        assert bf16_ulps(normed, data[f"s{step}_normed"]) == 0
        pre, post, comb = hc_coefficients(
            mixes, data[f"scale{step}"], data[f"base{step}"], streams, iters, float(data["sinkhorn_eps"])
        )
        for value, key in ((pre, "pre"), (post, "post"), (comb, "comb")):
            expected = data[f"s{step}_{key}"].view(value.shape)
            assert torch.allclose(value.float(), expected, rtol=1e-5, atol=0), (step, key)
    trunk = round_bf16(hc_expand(trunk, data["last_sublayer_out"].to(carrier), post, comb))
    assert bf16_ulps(trunk, data["final_trunk"]) == 0
    assert bf16_ulps(hc_collapse(trunk, pre), data["final_collapsed"]) == 0


@pytest.mark.parametrize("iters", [1, 10, 20])
def test_recorded_sinkhorn_iterations_are_reproduced(iters: int, vectors: VectorLoader) -> None:
    data = vectors("model/sinkhorn")
    assert torch.allclose(sinkhorn(data["logits"], iters, 1e-6), data[f"it{iters}"], rtol=1e-5, atol=1e-9)


def test_one_iteration_less_is_another_result(vectors: VectorLoader) -> None:
    data = vectors("model/sinkhorn")
    assert not torch.allclose(sinkhorn(data["logits"], 9, 1e-6), data["it10"], rtol=1e-5, atol=1e-9)


def test_comb_is_applied_over_its_first_index() -> None:
    x = torch.eye(3, dtype=torch.float64).unsqueeze(0)
    comb = torch.arange(9, dtype=torch.float64).view(1, 3, 3)
    out = hc_expand(x, torch.zeros(1, 3, dtype=torch.float64), torch.ones(1, 3, dtype=torch.float64), comb)
    assert torch.equal(out[0], comb[0].t())


def test_bfloat16_streams_are_mixed_in_float32_and_rounded_once() -> None:
    generator = torch.Generator().manual_seed(4)
    x = torch.randn(5, 4, 64, generator=generator).bfloat16()
    y = torch.randn(5, 64, generator=generator).bfloat16()
    post, comb = torch.rand(5, 4, generator=generator), torch.rand(5, 4, 4, generator=generator)
    narrow = hc_expand(x, y, post, comb)
    assert narrow.dtype == torch.bfloat16
    assert torch.equal(narrow, hc_expand(x.float(), y.float(), post, comb).bfloat16())


def test_every_step_is_differentiable() -> None:
    generator = torch.Generator().manual_seed(5)

    def leaf(*shape: int) -> torch.Tensor:
        return torch.randn(*shape, dtype=torch.float64, generator=generator).requires_grad_()

    inputs = (leaf(2, 3, 5), leaf(15, 15), leaf(3), leaf(15), leaf(2, 5))

    def step(
        x: torch.Tensor, fn: torch.Tensor, scale: torch.Tensor, base: torch.Tensor, y: torch.Tensor
    ) -> torch.Tensor:
        pre, post, comb = hc_coefficients(hc_mixes(x, fn, 1e-6), scale, base, 3, 4, 1e-6)
        return hc_collapse(hc_expand(x, y, post, comb), pre)

    assert torch.autograd.gradcheck(step, inputs, atol=1e-4)


def test_shapes_that_do_not_fit_are_refused_by_name() -> None:
    x = torch.ones(2, 4, 8)
    with pytest.raises(ConfigError, match=r"fn has shape \[24, 31\]; \[24, 32\] is expected"):
        hc_mixes(x, torch.ones(24, 31), 1e-6)
    with pytest.raises(ConfigError, match=r"z has shape \[2, 20\]; \[n, 24\] is expected"):
        hc_coefficients(torch.ones(2, 20), torch.ones(3), torch.ones(24), 4, 20, 1e-6)
    with pytest.raises(ConfigError, match=r"scale has shape \[2\]; \[3\] is expected"):
        hc_coefficients(torch.ones(2, 24), torch.ones(2), torch.ones(24), 4, 20, 1e-6)
    with pytest.raises(ConfigError, match="iters is 0; at least 1"):
        hc_coefficients(torch.ones(2, 24), torch.ones(3), torch.ones(24), 4, 0, 1e-6)
    with pytest.raises(ConfigError, match=r"pre has shape \[2, 3\]; \[2, 4\] is expected"):
        hc_collapse(x, torch.ones(2, 3))
    with pytest.raises(ConfigError, match=r"y has shape \[2, 9\]; \[2, 8\] is expected"):
        hc_expand(x, torch.ones(2, 9), torch.ones(2, 4), torch.ones(2, 4, 4))


@pytest.mark.parametrize("rows", [0, 1, 2, 7, 65])
@pytest.mark.parametrize("carrier", [torch.float32, torch.float64])
def test_normalising_with_and_without_gradients_gives_the_same_bits(rows: int, carrier: torch.dtype) -> None:
    logits = torch.randn(rows, 4, 4, dtype=carrier, generator=torch.Generator().manual_seed(rows))
    plain = sinkhorn(logits, 20, 1e-6)
    assert torch.equal(sinkhorn(logits.requires_grad_(), 20, 1e-6).detach(), plain)
