"""Dense linears and the gate on Hopper against float64, or the reference."""

from __future__ import annotations

import pytest
import torch
from torch import Tensor

from thalweg.interfaces import ConfigError
from thalweg.kernels import Fp8Weight, Mxfp8Rows, SyncGuard, bind, cuda_sync_mode
from thalweg.kernels.reference.quant import dequantize_fp8_weight, dequantize_mxfp8
from thalweg.kernels.sm90.bf16_linear import bf16_linear
from thalweg.kernels.sm90.fp8_linear import fp8_linear, grouped_fp8_linear
from thalweg.kernels.sm90.gate import topk_gate
from thalweg.kernels.testing import relative_error, same_bits

reference = bind("cpu")
ROWS = (0, 1, 7, 8, 9, 16, 31, 33, 65, 300)
SMALL = [(32, 32), (96, 64), (128, 256), (256, 384), (512, 128)]
REAL = [(1792, 5120), (5120, 2304), (4096, 1280), (8192, 5152)]
GROUPED = [(2, 64, 64), (3, 32, 96), (8, 1024, 4096)]


def codes_and_scales(rows: int, columns: int, group: tuple[int, int], device: torch.device) -> tuple[Tensor, Tensor]:
    """e4m3 codes without NaN, and scales from 2^-7 to 2^2 for every group of elements."""
    codes = torch.randint(0, 0x7F, (rows, columns), device=device) + 128 * torch.randint(
        0, 2, (1, columns), device=device
    )
    scales = torch.randint(120, 130, (rows // group[0], columns // group[1]), device=device)
    return codes.to(torch.uint8), scales.to(torch.uint8)


def random_rows(n: int, width: int, device: torch.device) -> tuple[Mxfp8Rows, Tensor]:
    """MXFP8 rows and what they stand for, float64."""
    x = Mxfp8Rows(*codes_and_scales(n, width, (1, 32), device))
    return x, dequantize_mxfp8(*x, torch.float64)


def random_weight(rows: int, columns: int, device: torch.device) -> tuple[Fp8Weight, Tensor]:
    """A packed weight and what it stands for, float64."""
    codes, scales = codes_and_scales(rows, columns, (32, 32), device)
    return reference.pack_fp8_weight(codes, scales), dequantize_fp8_weight(codes, scales, torch.float64)


@pytest.mark.gpu
@pytest.mark.parametrize("shape", [*SMALL, *REAL])
def test_an_fp8_linear_is_that_of_float64(hopper: torch.device, shape: tuple[int, int]) -> None:
    weight, values = random_weight(*shape, hopper)
    for n in ROWS:
        x, rows = random_rows(n, shape[1], hopper)
        product = fp8_linear(x, weight)
        assert product.shape == (n, shape[0])
        assert relative_error(product, rows @ values.t()) <= 4e-3, n


@pytest.mark.gpu
@pytest.mark.parametrize("shape", GROUPED)
def test_a_grouped_linear_is_one_for_each_part(hopper: torch.device, shape: tuple[int, int, int]) -> None:
    groups, rows, depth = shape
    weight, values = random_weight(groups * rows, depth, hopper)
    for n in ROWS:
        x, parts = random_rows(n, groups * depth, hopper)
        expected = torch.einsum("ngk,gok->ngo", parts.view(n, groups, depth), values.view(groups, rows, depth))
        product = grouped_fp8_linear(x, weight, groups)
        assert product.shape == (n, groups * rows)
        assert relative_error(product, expected.reshape(n, groups * rows)) <= 4e-3, n


@pytest.mark.gpu
@pytest.mark.parametrize("shape", [(32, 32), (40, 96), (128, 512), (384, 5120), (4096, 256), (9000, 5120)])
def test_a_bf16_linear_is_that_of_float64(hopper: torch.device, shape: tuple[int, int]) -> None:
    weight = torch.randn(shape, device=hopper).bfloat16()
    for n in ROWS:
        x = torch.randn(n, shape[1] + 8, device=hopper).bfloat16()[:, :-8]
        expected = x.double() @ weight.double().t()
        assert relative_error(bf16_linear(x, weight), expected) <= 4e-3, n
        assert relative_error(bf16_linear(x, weight, torch.float32), expected) <= 1e-6, n


@pytest.mark.gpu
@pytest.mark.parametrize("experts", [8, 16, 33, 384])
def test_the_gate_chooses_as_the_reference_on_the_device(hopper: torch.device, experts: int) -> None:
    bias, image_bias = (0.1 * torch.randn(experts, device=hopper) for _ in range(2))
    for n in ROWS:
        logits = 4 * torch.randn(n, experts, device=hopper)
        logits[::7] = torch.randint(0, 2, (experts,), device=hopper).float()
        images, valid = torch.rand(n, device=hopper) < 0.3, torch.rand(n, device=hopper) < 0.8
        for more in ((), (image_bias, images), (image_bias, images, valid), (None, None, valid)):
            ids, weights = topk_gate(logits, bias, 6, 2.5, *more)
            expected_ids, expected_weights = reference.topk_gate(logits, bias, 6, 2.5, *more)
            assert torch.equal(ids, expected_ids)
            assert torch.allclose(weights, expected_weights, rtol=1e-6, atol=0)
    ids, _ = topk_gate(logits, None, 6, 2.5)
    assert torch.equal(ids, reference.topk_gate(logits, None, 6, 2.5)[0])


@pytest.mark.gpu
def test_a_graph_of_them_follows_its_inputs_and_nothing_blocks(hopper: torch.device) -> None:
    weight, _ = random_weight(96, 64, hopper)
    plain = torch.randn(16, 96, device=hopper).bfloat16()
    x, _ = random_rows(9, 64, hopper)

    def run() -> tuple[Tensor, ...]:
        product = fp8_linear(x, weight)
        logits = bf16_linear(product, plain, torch.float32)
        return product, logits, *topk_gate(logits, None, 4, 1.0)

    run()
    graph = torch.cuda.CUDAGraph()
    with torch.cuda.graph(graph):
        found = run()
    for tensor, other in zip(x, random_rows(9, 64, hopper)[0], strict=True):
        tensor.copy_(other)
    graph.replay()
    with SyncGuard(*cuda_sync_mode()).forbid():
        expected = run()
    assert all(map(same_bits, found, expected))


def test_what_a_kernel_cannot_read_is_named() -> None:
    x = Mxfp8Rows(torch.zeros(2, 32, dtype=torch.uint8), torch.zeros(2, 1, dtype=torch.uint8))
    weight = Fp8Weight(torch.zeros(1, 1, 1024, dtype=torch.uint8), torch.zeros(1, 1, dtype=torch.uint8))
    with pytest.raises(ConfigError, match="codes on cpu, scales on cpu, tiles on cpu; one CUDA device is required"):
        fp8_linear(x, weight)
    with pytest.raises(ConfigError, match=r"groups is 2; the 32 rows of the weight"):
        grouped_fp8_linear(x, weight, 2)
    with pytest.raises(ConfigError, match="x on cpu, weight on cpu; one CUDA device is required"):
        bf16_linear(torch.ones(1, 32).bfloat16(), torch.ones(4, 32).bfloat16())
    with pytest.raises(ConfigError, match="got logits on cpu; one CUDA device is required"):
        topk_gate(torch.ones(1, 64), None, 6, 1.0)
    with pytest.raises(ConfigError, match="topk is 33; at most 32 are supported"):
        topk_gate(torch.ones(1, 64), None, 33, 1.0)
    with pytest.raises(ConfigError, match="image_mask was given without image_bias"):
        topk_gate(torch.ones(1, 64), None, 6, 1.0, image_mask=torch.ones(1, dtype=torch.bool))
