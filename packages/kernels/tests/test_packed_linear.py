"""Dense linears on stored weights, against plain products of the values they stand for."""

from __future__ import annotations

import pytest
import torch
from torch import Tensor

from thalweg.interfaces import ConfigError
from thalweg.kernels import Fp8Weight, Mxfp8Rows, bind
from thalweg.kernels.reference.packed_linear import unpack_fp8_weight
from thalweg.kernels.testing import relative_error, same_bits

ops = bind("cpu", batch_invariant=True)


def codes_and_scales(
    rows: int, columns: int, group: tuple[int, int] = (32, 32), seed: int = 0
) -> tuple[Tensor, Tensor]:
    """e4m3 codes without NaN, and scales from 2^-7 to 2^2 for every group of elements."""
    generator = torch.Generator().manual_seed(seed)
    magnitudes = torch.randint(0, 0x7F, (rows, columns), generator=generator)
    codes = magnitudes + 128 * torch.randint(0, 2, (rows, columns), generator=generator)
    scales = torch.randint(120, 130, (rows // group[0], columns // group[1]), generator=generator)
    return codes.to(torch.uint8), scales.to(torch.uint8)


def values(codes: Tensor, scales: Tensor) -> Tensor:
    """float64 values of codes with one scale for every equal part of both axes."""
    factors = torch.exp2(scales.double() - 127)
    for axis in (0, 1):
        factors = factors.repeat_interleave(codes.shape[axis] // scales.shape[axis], axis)
    return codes.view(torch.float8_e4m3fn).double() * factors


@pytest.mark.parametrize("shape", [(32, 32), (96, 64), (64, 1280)])
def test_packing_keeps_every_code_at_the_place_that_is_documented(shape: tuple[int, int]) -> None:
    codes, scales = codes_and_scales(*shape)
    weight = ops.pack_fp8_weight(codes, scales)
    assert (weight.out_features, weight.in_features) == shape
    back, same_scales = unpack_fp8_weight(weight)
    assert torch.equal(back, codes)
    assert torch.equal(same_scales, scales)
    down, across, a, b, g, t, e = shape[0] // 32 - 1, shape[1] // 32 - 1, 1, 0, 5, 2, 7
    byte = weight.tiles[down, across, 512 * a + 64 * g + 16 * t + 8 * b + e]
    assert byte == codes[32 * down + 16 * a + 8 * b + g, 32 * across + 8 * t + e]


def test_packing_takes_a_weight_that_is_a_part_of_another() -> None:
    codes, scales = codes_and_scales(96, 128)
    whole, part = ops.pack_fp8_weight(codes, scales), ops.pack_fp8_weight(codes[32:], scales[1:])
    assert same_bits(part.tiles, whole.tiles[1:])
    assert part.scales.is_contiguous()


@pytest.mark.parametrize("n", [0, 1, 9])
def test_an_fp8_linear_multiplies_the_values_that_codes_and_scales_stand_for(n: int) -> None:
    x, w = codes_and_scales(n, 96, (1, 32), seed=1), codes_and_scales(64, 96)
    product = ops.fp8_linear(Mxfp8Rows(*x), ops.pack_fp8_weight(*w))
    assert product.shape == (n, 64)
    assert product.dtype == torch.bfloat16
    if n:
        assert relative_error(product, values(*x) @ values(*w).t()) <= 4e-3


@pytest.mark.parametrize(("n", "groups"), [(0, 2), (1, 1), (5, 3)])
def test_a_grouped_linear_is_one_linear_for_each_part(n: int, groups: int) -> None:
    codes, scales = codes_and_scales(n, groups * 64, (1, 32), seed=1)
    w_codes, w_scales = codes_and_scales(groups * 32, 64)
    product = ops.grouped_fp8_linear(Mxfp8Rows(codes, scales), ops.pack_fp8_weight(w_codes, w_scales), groups)
    assert product.shape == (n, groups * 32)
    for j in range(groups):
        part = Mxfp8Rows(codes[:, 64 * j : 64 * (j + 1)], scales[:, 2 * j : 2 * (j + 1)])
        weight = ops.pack_fp8_weight(w_codes[32 * j : 32 * (j + 1)], w_scales[j : j + 1])
        assert same_bits(product[:, 32 * j : 32 * (j + 1)].contiguous(), ops.fp8_linear(part, weight))


@pytest.mark.parametrize("n", [0, 1, 9])
@pytest.mark.parametrize(("dtype", "bound"), [(torch.bfloat16, 4e-3), (torch.float32, 1e-6)])
def test_a_bf16_linear_is_rounded_once(n: int, dtype: torch.dtype, bound: float) -> None:
    generator = torch.Generator().manual_seed(n)
    x, w = (torch.randn(rows, 80, generator=generator).bfloat16() for rows in (n, 40))
    product = ops.bf16_linear(x, w, dtype)
    assert product.shape == (n, 40)
    assert product.dtype == dtype
    assert relative_error(product, x.double() @ w.double().t()) <= bound
    assert same_bits(ops.bf16_linear(x, w), ops.bf16_linear(x, w, torch.float32).bfloat16())


def test_the_gate_is_the_choice_by_scores() -> None:
    logits, bias = torch.randn(20, 16), torch.randn(16)
    images, valid = torch.arange(20) % 3 == 0, torch.arange(20) % 5 != 0
    ids, weights = ops.topk_gate(logits, bias, 4, 1.5, -bias, images, valid)
    expected = ops.route(ops.gate_scores(logits), bias, 4, 1.5, -bias, images, valid)
    assert torch.equal(ids, expected[0])
    assert same_bits(weights, expected[1])


def test_errors_name_what_does_not_fit() -> None:
    codes, scales = codes_and_scales(64, 96)
    weight = ops.pack_fp8_weight(codes, scales)
    x = Mxfp8Rows(*codes_and_scales(2, 96, (1, 32)))
    with pytest.raises(ConfigError, match=r"codes have shape \[63, 96\]; multiples of 32 are required"):
        ops.pack_fp8_weight(codes[1:], scales)
    with pytest.raises(ConfigError, match=r"scales has shape \[1, 3\]; \[2, 3\] is expected"):
        ops.pack_fp8_weight(codes, scales[1:])
    with pytest.raises(ConfigError, match=r"codes have dtype torch.int8; uint8 is required"):
        ops.pack_fp8_weight(codes.view(torch.int8), scales)
    with pytest.raises(ConfigError, match=r"codes of x has shape \[2, 64\]; \[n, 96\] is expected"):
        ops.fp8_linear(Mxfp8Rows(x.codes[:, :64], x.scales), weight)
    with pytest.raises(ConfigError, match=r"scales of x has shape \[2, 2\]; \[2, 3\] is expected"):
        ops.fp8_linear(Mxfp8Rows(x.codes, x.scales[:, 1:]), weight)
    with pytest.raises(ConfigError, match=r"scales of x has dtype torch.float32; torch.uint8 is required"):
        ops.fp8_linear(Mxfp8Rows(x.codes, x.scales.float()), weight)
    with pytest.raises(ConfigError, match=r"groups is 4; the 64 rows of the weight must fall into equal groups"):
        ops.grouped_fp8_linear(x, weight, 4)
    with pytest.raises(ConfigError, match=r"x has dtype torch.float32; bfloat16 is required"):
        ops.bf16_linear(torch.ones(1, 8), torch.ones(4, 8).bfloat16())
    with pytest.raises(ConfigError, match=r"out_dtype is torch.float64; bfloat16 and float32 are accepted"):
        ops.bf16_linear(torch.ones(1, 8).bfloat16(), torch.ones(4, 8).bfloat16(), torch.float64)
    with pytest.raises(ConfigError, match=r"topk is 9; with 8 experts it must be 1..8"):
        ops.topk_gate(torch.ones(1, 8), None, 9, 1.0)
    with pytest.raises(ConfigError, match=r"logits have dtype torch.float64; float32 is required"):
        ops.topk_gate(torch.ones(1, 8).double(), None, 2, 1.0)
    assert isinstance(weight, Fp8Weight)
