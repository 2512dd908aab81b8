"""Norms, casts, SwiGLU and rotations on Hopper: bytes of the reference, and rows whose bits are their own."""

from __future__ import annotations

import pytest
import torch
from kernels_testing.device_rows import (
    ROW_COUNTS,
    bf16_steps,
    by_row,
    compute,
    equal,
    here,
    joined,
    keeps_promises,
    kernels,
    reference,
)
from kernels_testing.row_cases import Op, random
from torch import Tensor

from thalweg.interfaces import ConfigError
from thalweg.kernels.reference import formats
from thalweg.kernels.testing import Rows

pytestmark = [pytest.mark.gpu, pytest.mark.sm90]

EPS = 1e-6
TYPES = (torch.float32, torch.bfloat16)


def bf16(*shape: int, seed: int = 0) -> Tensor:
    """Of magnitudes from 2^-20 to 2^20 by group of columns, with zeros of both signs and NaN among them."""
    values = random(*shape, dtype=torch.float32, seed=seed)
    powers = random(*shape[:-1], max(shape[-1] // 32, 1), dtype=torch.float32, seed=seed + 1).mul(6).round().exp2()
    values = values * powers.repeat_interleave(shape[-1] // powers.shape[-1], -1)
    values[..., ::37], values[..., 5::91] = 0.0, -0.0
    return values.bfloat16()


def plain(*shape: int, seed: int = 0, dtype: torch.dtype = torch.bfloat16) -> Tensor:
    return random(*shape, dtype=dtype, seed=seed)


def tables(rows: int, pairs: int) -> tuple[Tensor, Tensor]:
    angle = random(rows, pairs, dtype=torch.float32, seed=5) * 9
    return angle.cos(), angle.sin()


@pytest.mark.parametrize("width", [32, 96, 128, 256, 1280, 5120, 8192, 15360])
@pytest.mark.parametrize("rows", ROW_COUNTS)
def test_the_cast_gives_the_bytes_of_the_reference(rows: int, width: int, hopper: torch.device) -> None:
    x = bf16(rows, width)
    if rows:
        x[rows // 2, 7] = torch.nan
        x[rows // 2, 32:64] = 0.0
    assert equal(*compute("quantize_mxfp8", hopper, x))


def test_all_numbers_of_bfloat16_are_cast_as_by_the_reference(hopper: torch.device) -> None:
    """Each as the largest of a group, together with the numbers around a 448th, and alone."""
    numbers = torch.arange(1 << 16).to(torch.int32).to(torch.int16).view(torch.bfloat16)
    numbers = numbers[torch.isfinite(numbers)]
    groups = numbers[:, None] * random(1, 32, dtype=torch.float32).clamp(-1, 1).bfloat16()
    groups[:, 3] = numbers
    assert equal(*compute("quantize_mxfp8", hopper, groups))
    assert equal(*compute("quantize_mxfp8", hopper, numbers[: len(numbers) // 32 * 32].view(-1, 32)))
    one, zero = torch.ones(len(numbers), 16), torch.zeros(len(numbers), 16)
    assert equal(*compute("rotate_quantize_mxfp4", hopper, groups[:, None], one, zero))


def test_a_cast_of_rows_that_lie_apart_or_of_more_axes(hopper: torch.device) -> None:
    wide = bf16(40, 3 * 64)
    assert equal(*compute("quantize_mxfp8", hopper, wide[:, 64:128], on_device=[wide.to(hopper)[:, 64:128]]))
    assert equal(*compute("quantize_mxfp8", hopper, wide.view(10, 4, 192)))


@pytest.mark.parametrize("dtype", TYPES, ids=str)
@pytest.mark.parametrize("width", [64, 128, 256, 512, 1280, 5120])
@pytest.mark.parametrize("rows", ROW_COUNTS)
def test_norms_differ_by_one_step_in_few_places(
    rows: int, width: int, dtype: torch.dtype, hopper: torch.device
) -> None:
    """The order of a sum and the last bits of a root differ, and a value beside the middle of two bfloat16 moves.

    In one of about 2^23 / 2^8 / 2 places for each last bit of float32: less than one in 2,000 are allowed.
    """
    x, weight = plain(rows, width), plain(width, seed=2, dtype=dtype)
    found, expected = compute("rms_norm", hopper, x, weight, EPS)
    most, share = bf16_steps(found, expected)
    assert most <= 1
    assert share < 5e-4
    cast, _ = compute("norm_quantize", hopper, x, weight, EPS)
    assert equal(cast, reference.quantize_mxfp8(found))


def test_a_norm_of_rows_that_lie_apart(hopper: torch.device) -> None:
    wide, weight = plain(33, 192).to(hopper), plain(128).to(hopper)
    for name in ("rms_norm", "norm_quantize"):
        op = getattr(kernels, name)
        assert equal(here(op(wide[:, 64:], weight, EPS)), here(op(wide[:, 64:].contiguous(), weight, EPS)))


@pytest.mark.parametrize("is_weighted", [False, True])
@pytest.mark.parametrize("width", [32, 128, 2304])
@pytest.mark.parametrize("rows", ROW_COUNTS)
def test_swiglu_casts_values_that_are_right_up_to_a_millionth(
    rows: int, width: int, is_weighted: bool, hopper: torch.device
) -> None:
    """Exp and reciprocal of the device, and three products, are off by less than 2^-20 together.

    So a scale and a code are between those of the exact value made smaller and larger by as much. They are others than
    those of the reference beside the middle of two codes, in one place of 100,000, and beside a power of two.
    """
    gate_up, weights = 4 * plain(rows, 2 * width), plain(rows, dtype=torch.float32).abs() if is_weighted else None
    gate_up[::2] *= 3
    if rows:
        gate_up[0, 3], gate_up[rows - 1, width + 9] = torch.nan, torch.nan
    found, expected = compute("swiglu_quantize", hopper, gate_up, 10.0, weights)
    gate, up = gate_up.double().chunk(2, -1)
    exact = reference.swiglu(gate, up, 10.0, None if weights is None else weights.double()).nan_to_num(0.0)
    ends = [exact * (1 + side * 2**-20) for side in (-1, 1)]
    assert all(lies_between(found.scales, *(reference.quantize_mxfp8(end)[1] for end in ends)).flatten())
    scale = formats.decode_ue8m0(found.scales).repeat_interleave(32, -1)
    low, high = (formats.encode_e4m3((end / scale).float()) for end in ends)
    assert bool(lies_between(found.codes & 0x7F, low & 0x7F, high & 0x7F).all())
    assert equal(found.codes & 0x80, expected.codes & 0x80)
    assert int((found.codes != expected.codes).sum()) <= 1 + found.codes.numel() // 20_000
    assert int((found.scales != expected.scales).sum()) <= found.scales.numel() // 100_000


def lies_between(found: Tensor, low: Tensor, high: Tensor) -> Tensor:
    return (low <= found) & (found <= high)


@pytest.mark.parametrize(("heads", "width", "rope"), [(64, 512, 64), (8, 64, 32), (32, 128, 64), (1, 32, 32)])
@pytest.mark.parametrize("rows", ROW_COUNTS)
def test_rotations_give_the_bytes_of_the_reference(
    rows: int, heads: int, width: int, rope: int, hopper: torch.device
) -> None:
    x, (cos, sin) = bf16(rows, heads, width), tables(rows, rope // 2)
    assert equal(*compute("rotate_quantize_mxfp4", hopper, x, cos, sin))
    assert equal(*compute("unrotate_quantize", hopper, x, cos, sin))
    turned = x.to(hopper)
    kernels.rotate_rows(turned, cos.to(hopper), sin.to(hopper))
    reference.rotate_rows(x, cos, sin)
    assert equal(turned.cpu(), x)


@pytest.mark.parametrize("width", [128, 1280, 5120])
def test_bits_of_a_normed_or_cast_row_are_its_own(width: int, hopper: torch.device) -> None:
    rows, weight = by_row(plain(65, width)), plain(width).to(hopper)
    assert keeps_promises("rms_norm", lambda op, ids: op(*rows(ids), weight, EPS)) == []
    assert keeps_promises("norm_quantize", lambda op, ids: joined(op(*rows(ids), weight, EPS))) == []
    assert keeps_promises("quantize_mxfp8", lambda op, ids: joined(op(*rows(ids)))) == []


@pytest.mark.parametrize("width", [64, 512, 5120])
def test_bits_of_a_normed_row_are_the_same_in_small_and_large_batches(width: int, hopper: torch.device) -> None:
    """In large ones a block has one row after the other."""
    few, weight = plain(65, width).to(hopper), plain(width).to(hopper)
    ids = torch.arange(65, device=hopper).repeat(300)
    for name in ("rms_norm", "norm_quantize"):
        op = getattr(kernels, name)
        assert equal(tuple(part[ids] for part in joined(op(few, weight, EPS))), joined(op(few[ids], weight, EPS)))


@pytest.mark.parametrize("width", [128, 2304])
def test_bits_of_a_row_of_swiglu_are_its_own(width: int, hopper: torch.device) -> None:
    rows = by_row(plain(65, 2 * width), plain(65, dtype=torch.float32))

    def call(op: Op, ids: Tensor) -> Rows:
        gate_up, weights = rows(ids)
        return joined(op(gate_up, 10.0, weights))

    assert keeps_promises("swiglu_quantize", call) == []


@pytest.mark.parametrize(("heads", "width", "rope"), [(8, 64, 32), (64, 512, 64)])
def test_bits_of_a_rotated_row_are_its_own(heads: int, width: int, rope: int, hopper: torch.device) -> None:
    rows = by_row(plain(65, heads, width), *tables(65, rope // 2))

    def in_place(op: Op, ids: Tensor) -> Rows:
        x, cos, sin = rows(ids)
        op(x, cos, sin)
        return x

    assert keeps_promises("rotate_rows", in_place) == []
    for name in ("rotate_quantize_mxfp4", "unrotate_quantize"):
        assert keeps_promises(name, lambda op, ids: joined(op(*rows(ids)))) == []


def test_what_a_kernel_cannot_take_is_named(hopper: torch.device) -> None:
    x, weight = plain(4, 64).to(hopper), plain(64).to(hopper)
    with pytest.raises(ConfigError, match=r"refuse_nan is True; on a device NaN is encoded as 0"):
        kernels.quantize_mxfp8(x, refuse_nan=True)
    with pytest.raises(ConfigError, match=r"x on cuda:0, weight on cpu; one CUDA device is required"):
        kernels.rms_norm(x, weight.cpu(), EPS)
    with pytest.raises(ConfigError, match=r"weight has dtype torch\.float64; torch\.float32 or torch\.bfloat16"):
        kernels.norm_quantize(x, weight.double(), EPS)
    with pytest.raises(ConfigError, match=r"x has strides \[1, 4\]; 1 in a row"):
        kernels.norm_quantize(x.t().contiguous().t(), weight, EPS)
    with pytest.raises(ConfigError, match=r"half of gate_up has rows of 16 columns; a positive multiple of 32"):
        kernels.swiglu_quantize(x[:, :32].contiguous(), 10.0)
    angle = torch.zeros(4, 16, device=hopper)
    with pytest.raises(ConfigError, match=r"x has strides \[64, 0, 1\]; contiguous memory is required"):
        kernels.rotate_rows(x[:, None].expand(4, 2, 64), angle, angle)
