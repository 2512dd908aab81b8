"""RMSNorm and rotary embedding against recorded results and their defining properties."""

from __future__ import annotations

import numpy as np
import pytest
import torch

from thalweg.interfaces import ConfigError
from thalweg.kernels import YarnScaling
from thalweg.kernels.reference.norm import rms_norm
from thalweg.kernels.reference.rope import apply_rope, inverse_frequencies, rope_table, yarn_range
from thalweg.kernels.testing import RecordLoader, VectorLoader, bf16_ulps, same_bits

REAL_YARN = YarnScaling(factor=16, beta_fast=32, beta_slow=1, original_positions=65536)


@pytest.mark.parametrize("carrier", [torch.bfloat16, torch.float32, torch.float64])
def test_the_recorded_norm_is_reproduced(carrier: torch.dtype, vectors: VectorLoader) -> None:
    data = vectors("model/rmsnorm")
    y = rms_norm(data["x"].to(carrier), data["w"].to(carrier), float(data["eps"]))
    assert y.dtype == carrier
    assert bf16_ulps(y, data["y"]) == 0


def test_a_norm_of_tiny_values_needs_the_tiny_epsilon() -> None:
    x = torch.full((1, 64), 1e-6)
    weight = torch.ones(64)
    assert torch.allclose(rms_norm(x, weight, 1e-20), torch.ones(1, 64), rtol=1e-5)
    assert float(rms_norm(x, weight, 1e-6)[0, 0]) < 2e-3


def test_the_norm_passes_gradients_to_input_and_weight() -> None:
    x = torch.randn(3, 8, dtype=torch.float64, generator=torch.Generator().manual_seed(0), requires_grad=True)
    weight = torch.ones(8, dtype=torch.float64, requires_grad=True)
    assert torch.autograd.gradcheck(lambda a, b: rms_norm(a, b, 1e-6), (x, weight))


def test_a_weight_of_another_width_is_refused() -> None:
    with pytest.raises(ConfigError, match=r"weight has shape \[7\]; \[8\] is expected"):
        rms_norm(torch.ones(2, 8), torch.ones(7), 1e-6)


def test_frequencies_of_the_real_model_are_reproduced(vectors: VectorLoader) -> None:
    data = vectors("model/rope_real")
    assert torch.equal(inverse_frequencies(64, 10000.0), data["inv_freq_window"])
    assert torch.equal(inverse_frequencies(64, 160000.0, REAL_YARN), data["inv_freq_yarn"])
    assert yarn_range(64, 160000.0, REAL_YARN) == (int(data["yarn_low"]), int(data["yarn_high"]))


def test_frequencies_of_the_tiny_models_are_reproduced(recorded: RecordLoader) -> None:
    data = recorded("model/rope_tiny")
    plain = inverse_frequencies(data["dim"], data["theta_window"])
    assert plain.tolist() == pytest.approx(data["inv_window"], rel=1e-7)
    for case in data["cases"]:
        yarn = YarnScaling(case["factor"], data["beta_fast"], data["beta_slow"], case["original"])
        assert yarn_range(data["dim"], data["theta_compress"], yarn) == (case["low"], case["high"])
        scaled = inverse_frequencies(data["dim"], data["theta_compress"], yarn)
        assert np.array_equal(scaled.numpy(), np.float32(case["inv_yarn"]))


@pytest.mark.parametrize("name", ["window", "yarn"])
def test_recorded_rotary_tables_are_reproduced(name: str, vectors: VectorLoader) -> None:
    data = vectors("model/rope_real")
    cos, sin = rope_table(data["positions"], data[f"inv_freq_{name}"])
    # Vector libraries of different processors differ in the last bit of float32 cos and sin.
    assert float((cos - data[f"cos_{name}"]).abs().max()) <= 6e-8
    assert float((sin - data[f"sin_{name}"]).abs().max()) <= 6e-8


@pytest.mark.parametrize("carrier", [torch.bfloat16, torch.float32, torch.float64])
@pytest.mark.parametrize("name", ["window", "yarn"])
def test_recorded_rotations_are_reproduced(name: str, carrier: torch.dtype, vectors: VectorLoader) -> None:
    data = vectors("model/rope_real")
    cos, sin = data[f"cos_{name}"], data[f"sin_{name}"]
    assert bf16_ulps(apply_rope(data["x"].to(carrier), cos, sin), data[f"y_{name}"]) == 0
    if name == "yarn":
        back = apply_rope(data["x"].to(carrier), cos, sin, inverse=True)
        assert bf16_ulps(back, data["y_yarn_inverse"]) == 0


def test_only_the_last_columns_turn_and_the_inverse_turns_them_back() -> None:
    cos, sin = rope_table(torch.tensor([0, 5, 900]), inverse_frequencies(8, 10000.0))
    x = torch.randn(3, 2, 20, dtype=torch.float64, generator=torch.Generator().manual_seed(2))
    turned = apply_rope(x, cos, sin)
    assert same_bits(turned[..., :12], x[..., :12])
    assert torch.equal(turned[0], x[0])
    assert not torch.allclose(turned[1:, :, 12:], x[1:, :, 12:])
    assert torch.allclose(apply_rope(turned, cos, sin, inverse=True), x, atol=1e-7)
    assert same_bits(apply_rope(x[:, 0], cos, sin), turned[:, 0])


def test_rotation_is_differentiable() -> None:
    cos, sin = rope_table(torch.tensor([3, 4]), inverse_frequencies(4, 10000.0))
    x = torch.randn(2, 6, dtype=torch.float64, generator=torch.Generator().manual_seed(3), requires_grad=True)
    assert torch.autograd.gradcheck(lambda a: apply_rope(a, cos, sin), (x,))


def test_bad_rotary_arguments_are_refused_by_name() -> None:
    cos, sin = rope_table(torch.tensor([3, 4]), inverse_frequencies(4, 10000.0))
    with pytest.raises(ConfigError, match="dim is 7; the rotary width must be positive and even"):
        inverse_frequencies(7, 10000.0)
    with pytest.raises(ConfigError, match=r"apply_rope got x \[3, 6\]"):
        apply_rope(torch.ones(3, 6), cos, sin)
    with pytest.raises(ConfigError, match=r"apply_rope got x \[2, 3\]"):
        apply_rope(torch.ones(2, 3), cos, sin)
    with pytest.raises(ConfigError, match=r"x has dtype torch.int64"):
        apply_rope(torch.ones(2, 6, dtype=torch.int64), cos, sin)
