"""The matrix product, the roundings, and the sums whose order is fixed."""

from __future__ import annotations

import pytest
import torch

from thalweg.interfaces import ConfigError
from thalweg.kernels.reference.gemm import batched_row_products, grouped_matmul, matmul
from thalweg.kernels.reference.numerics import round_bf16, round_f32, sigmoid, softplus, split_last, sum_last
from thalweg.kernels.testing import relative_error, rows_that_depend_on_the_batch, same_bits


def random(*shape: int, dtype: torch.dtype = torch.float64) -> torch.Tensor:
    return torch.randn(*shape, dtype=torch.float64, generator=torch.Generator().manual_seed(sum(shape))).to(dtype)


@pytest.mark.parametrize("rows", [0, 1, 15, 16, 17, 40])
@pytest.mark.parametrize(("dtype", "bound"), [(torch.float64, 1e-14), (torch.float32, 1e-6), (torch.bfloat16, 4e-3)])
def test_the_product_is_that_of_float64(rows: int, dtype: torch.dtype, bound: float) -> None:
    x, weight = random(rows, 48, dtype=dtype), random(20, 48, dtype=dtype)
    product = matmul(x, weight)
    assert product.shape == (rows, 20)
    assert product.dtype == dtype
    assert relative_error(product, x.double() @ weight.double().t()) <= bound


def test_bfloat16_is_accumulated_in_float32_and_rounded_once() -> None:
    x, weight = random(7, 512, dtype=torch.bfloat16), random(9, 512, dtype=torch.bfloat16)
    assert same_bits(matmul(x, weight), matmul(x.float(), weight.float()).bfloat16())


def test_strided_operands_give_the_bits_of_packed_ones() -> None:
    x, weight = random(20, 96), random(30, 96)
    assert same_bits(matmul(x[:, :64], weight[:, :64]), matmul(x[:, :64].contiguous(), weight[:, :64].contiguous()))
    assert same_bits(matmul(x.t()[:64].t(), weight[:, :64]), matmul(x[:, :64].contiguous(), weight[:, :64]))


@pytest.mark.parametrize("rows", [5, 33])
def test_the_product_is_differentiable_in_both_operands(rows: int) -> None:
    x, weight = random(rows, 6).requires_grad_(), random(4, 6).requires_grad_()
    assert torch.autograd.gradcheck(matmul, (x, weight))
    x32 = random(rows, 6, dtype=torch.float32).requires_grad_()
    matmul(x32, weight.detach().float()).sum().backward()
    assert torch.allclose(x32.grad, weight.detach().float().sum(0).expand(rows, 6))


@pytest.mark.parametrize("rows", [1, 8, 9, 20])
def test_products_one_by_one_have_the_bits_of_each_alone(rows: int) -> None:
    x, weight = random(3, rows, 48), random(3, 40, 48)
    together = batched_row_products(x, weight)
    assert all(same_bits(together[i], matmul(x[i], weight[i])) for i in range(3))


@pytest.mark.parametrize(("rows", "depth", "width"), [(0, 6, 4), (5, 0, 4), (5, 6, 0)])
def test_an_empty_product_is_zero(rows: int, depth: int, width: int) -> None:
    product = matmul(torch.ones(rows, depth), torch.ones(width, depth))
    assert torch.equal(product, torch.zeros(rows, width))


def test_rows_of_a_group_get_the_bits_of_their_own_product() -> None:
    counts = [3, 0, 20, 1, 0]
    x = random(24, 64)
    weights = [random(40, 64) * (i + 1) for i in range(5)]
    expected = torch.cat([matmul(x[:3], weights[0]), matmul(x[3:23], weights[2]), matmul(x[23:], weights[3])])
    assert same_bits(grouped_matmul(x, counts, weights), expected)
    narrow = grouped_matmul(x.bfloat16(), counts, [weight.bfloat16() for weight in weights])
    assert narrow.dtype == torch.bfloat16
    assert grouped_matmul(x[:0], [0] * 5, weights).shape == (0, 40)


def test_a_grouped_product_is_differentiable() -> None:
    x = random(5, 6).requires_grad_()
    weights = [random(4, 6).requires_grad_(), random(4, 6).requires_grad_()]
    assert torch.autograd.gradcheck(lambda x, *weights: grouped_matmul(x, [2, 3], weights), (x, *weights))


def test_groups_that_do_not_add_up_are_refused() -> None:
    x, weights = random(4, 8), [random(3, 8)] * 2
    with pytest.raises(ConfigError, match=r"counts has 2 groups of 5 rows in all; there are 2 weights and 4 rows"):
        grouped_matmul(x, [2, 3], weights)
    with pytest.raises(ConfigError, match=r"counts has 1 groups of 4 rows in all; there are 2 weights and 4 rows"):
        grouped_matmul(x, [4], weights)
    with pytest.raises(ConfigError, match=r"matmul got x \[2, 8\] and weight \[3, 7\]"):
        grouped_matmul(x, [2, 2], [random(3, 7)] * 2)
    with pytest.raises(ConfigError, match=r"weights have shapes \[3, 8\] and \[5, 8\]; all must have one shape"):
        grouped_matmul(x, [2, 2], [weights[0], random(5, 8)])


def test_sums_of_exactly_representable_products_are_exact() -> None:
    x = torch.randint(-8, 9, (40, 300), generator=torch.Generator().manual_seed(0)).double() / 4
    weight = torch.randint(-8, 9, (20, 300), generator=torch.Generator().manual_seed(1)).double() / 8
    assert torch.equal(matmul(x, weight), x @ weight.t())


def test_bad_operands_are_refused_by_name() -> None:
    with pytest.raises(ConfigError, match=r"matmul got x \[2, 3\] and weight \[4, 5\]; x \[n, K\]"):
        matmul(torch.ones(2, 3), torch.ones(4, 5))
    with pytest.raises(ConfigError, match=r"matmul got x \[2, 2, 3\]"):
        matmul(torch.ones(2, 2, 3), torch.ones(4, 3))
    with pytest.raises(ConfigError, match=r"x of torch.float32 and weight of torch.float64; they must have one dtype"):
        matmul(torch.ones(2, 3), torch.ones(4, 3).double())
    with pytest.raises(ConfigError, match=r"x has dtype torch.int64; float64, float32 and bfloat16"):
        matmul(torch.ones(2, 3).long(), torch.ones(4, 3).long())


def test_rounding_keeps_the_dtype_and_goes_through_float32() -> None:
    x = random(1000)
    assert round_bf16(x).dtype == torch.float64
    assert torch.equal(round_bf16(x), x.float().bfloat16().double())
    assert torch.equal(round_f32(x), x.float().double())
    # Just above the middle of two bfloat16 neighbours, but float32 rounds it onto the middle, which goes to even.
    halfway = torch.tensor([1 + 2.0**-8 + 2.0**-40], dtype=torch.float64)
    assert round_bf16(halfway).item() == 1.0


@pytest.mark.parametrize("dtype", [torch.float32, torch.float64])
def test_elementwise_functions_do_not_depend_on_the_length_of_the_slice(dtype: torch.dtype) -> None:
    x = 6 * random(65, dtype=dtype)

    def compute(ids: torch.Tensor) -> tuple[torch.Tensor, ...]:
        part = x[ids]
        return sigmoid(part), softplus(part), torch.exp(part), torch.rsqrt(part.abs()), torch.cos(part), torch.sin(part)

    assert rows_that_depend_on_the_batch(compute) == []


def test_softplus_is_the_identity_above_20_and_never_overflows() -> None:
    x = torch.tensor([20.5, 1e4, -800.0, 0.0], dtype=torch.float64, requires_grad=True)
    y = softplus(x)
    assert y[:2].tolist() == [20.5, 1e4]
    assert y[2] == 0
    assert y[3].item() == pytest.approx(0.6931471805599453)
    y.sum().backward()
    assert torch.allclose(x.grad, torch.sigmoid(x.detach()))


@pytest.mark.parametrize("width", [8191, 8192, 8193, 40000, 129280])
@pytest.mark.parametrize("dtype", [torch.float32, torch.float64])
def test_a_very_long_row_is_summed_in_fixed_pieces(width: int, dtype: torch.dtype) -> None:
    x = random(3, width, dtype=dtype)
    assert rows_that_depend_on_the_batch(lambda ids: sum_last(x[ids]), 3) == []
    assert torch.allclose(sum_last(x).double(), x.double().sum(-1), rtol=1e-4, atol=1e-2)


def test_splitting_an_empty_tensor_keeps_its_shape() -> None:
    assert split_last(torch.empty(0, 64), 32).shape == (0, 2, 32)
