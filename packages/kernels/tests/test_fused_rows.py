"""Fused steps of the forward pass are the plain ops one after the other, with the model's roundings between them."""

from __future__ import annotations

import pytest
import torch
from kernels_testing.row_cases import random
from torch import Tensor

from thalweg.interfaces import ConfigError
from thalweg.kernels import HcMix, Mxfp8Rows, bind
from thalweg.kernels.testing import same_bits

ops = bind("cpu", batch_invariant=True)
ROWS, STREAMS, HIDDEN = 7, 4, 256


def bf16(*shape: int, seed: int = 0, scale: float = 1.0) -> Tensor:
    return random(*shape, dtype=torch.bfloat16, seed=seed, scale=scale)


def f32(*shape: int, seed: int = 0) -> Tensor:
    return random(*shape, dtype=torch.float32, seed=seed)


def mix(rows: int = ROWS) -> HcMix:
    return HcMix(f32(rows, STREAMS), f32(rows, STREAMS, seed=1), f32(rows, STREAMS, STREAMS))


def equal(found: tuple[Tensor, ...], expected: tuple[Tensor, ...]) -> bool:
    return len(found) == len(expected) and all(map(same_bits, found, expected))


@pytest.mark.parametrize("dtype", [torch.float32, torch.bfloat16], ids=str)
def test_a_norm_is_rounded_before_it_is_cast_and_rows_may_lie_apart(dtype: torch.dtype) -> None:
    wide, weight = bf16(ROWS, 192), f32(128).to(dtype)
    x = wide[:, 64:]
    found = ops.norm_quantize(x, weight, 1e-6)
    assert isinstance(found, Mxfp8Rows)
    normed = ops.rms_norm(x.float(), weight.float(), 1e-6).bfloat16()
    assert equal(found, ops.quantize_mxfp8(normed))


def test_swiglu_is_cast_from_float32() -> None:
    gate_up, weights = bf16(ROWS, 128, scale=8), f32(ROWS)
    gate, up = gate_up.float().chunk(2, 1)
    expected = ops.quantize_mxfp8(ops.swiglu(gate, up, 10.0, weights))
    assert equal(ops.swiglu_quantize(gate_up, 10.0, weights), expected)
    assert equal(ops.swiglu_quantize(gate_up, 10.0), ops.quantize_mxfp8(ops.swiglu(gate, up, 10.0)))
    rounded = ops.quantize_mxfp8(ops.swiglu(gate, up, 10.0, weights).bfloat16())
    assert not equal(ops.swiglu_quantize(gate_up, 10.0, weights), rounded)


def test_rotations_are_rounded_before_they_are_cast() -> None:
    x, angle = bf16(ROWS, 3, 96), f32(ROWS, 16)
    cos, sin = angle.cos(), angle.sin()
    turned, back = (ops.apply_rope(x.float(), cos, sin, inverse=inverse).bfloat16() for inverse in (False, True))
    assert equal(ops.rotate_quantize_mxfp4(x, cos, sin), ops.quantize_mxfp4(turned))
    assert equal(ops.unrotate_quantize(x, cos, sin), ops.quantize_mxfp8(back.flatten(1)))
    rows = x.clone()
    assert ops.rotate_rows(rows, cos, sin) is None
    assert same_bits(rows, turned)
    assert same_bits(rows[..., :64], x[..., :64])


def test_reading_the_trunk_rounds_the_mix_and_the_norm() -> None:
    trunk, read, weight = bf16(ROWS, STREAMS, HIDDEN), mix().next_read, f32(HIDDEN)
    found = ops.hc_read(trunk, read, weight, 1e-6)
    collapsed = ops.hc_collapse(trunk.float(), read).bfloat16()
    rows = ops.rms_norm(collapsed.float(), weight, 1e-6).bfloat16()
    assert equal(found, (rows, *ops.quantize_mxfp8(rows)))
    assert equal(found.quantized, ops.quantize_mxfp8(rows))


def test_the_next_sub_layer_reads_the_rounded_trunk() -> None:
    trunk, output, weight, coefficients = bf16(ROWS, STREAMS, HIDDEN), bf16(ROWS, HIDDEN), f32(HIDDEN), mix()
    advanced, read = ops.hc_advance(trunk, output, coefficients, weight, 1e-6)
    expanded = ops.hc_expand(trunk.float(), output.float(), coefficients.write, coefficients.carry).bfloat16()
    assert same_bits(advanced, expanded)
    assert equal(read, ops.hc_read(expanded, coefficients.next_read, weight, 1e-6))


def test_coefficients_stay_in_float32() -> None:
    trunk, fn, scale, base = bf16(ROWS, STREAMS, HIDDEN), f32(24, STREAMS * HIDDEN) / 32, f32(3), f32(24)
    found = ops.hc_mix(trunk, fn, scale, base, 1e-6, 1e-5, 20)
    z = ops.hc_mixes(trunk.float(), fn, 1e-6)
    assert equal(found, ops.hc_coefficients(z, scale, base, STREAMS, 20, 1e-5))
    assert {part.dtype for part in found} == {torch.float32}
    assert torch.allclose(found.carry.sum(1), torch.ones(ROWS, STREAMS), atol=1e-3)


def test_rows_of_the_table_follow_each_other_and_an_image_reads_the_first() -> None:
    codes, scales = (torch.randint(256, (9, width), dtype=torch.uint8) for width in (64, 2))
    found = ops.engram_lookup(codes, scales, torch.tensor([[3, -1, 8], [0, 0, 5]]))
    rows = [3, 0, 8, 0, 0, 5]
    assert equal(found, (codes[rows].view(2, 192), scales[rows].view(2, 6)))


@pytest.mark.parametrize("has_images", [False, True])
def test_the_gated_value_is_added_and_rounded_once(has_images: bool) -> None:
    trunk, projected = bf16(ROWS, STREAMS, HIDDEN), bf16(ROWS, (STREAMS + 1) * HIDDEN)
    weights = f32(STREAMS, HIDDEN), f32(STREAMS, HIDDEN, seed=1)
    images = torch.arange(ROWS) % 3 == 1 if has_images else None
    found = ops.engram_update(trunk, projected, *weights, 1e-6, images)
    parts = projected.float().view(ROWS, STREAMS + 1, HIDDEN)
    gate = ops.engram_gate(trunk.float(), parts[:, :STREAMS], *weights, 1e-6)
    assert same_bits(found, ops.engram_apply(trunk.float(), parts[:, STREAMS], gate, images).bfloat16())
    if images is not None:
        assert same_bits(found[images], trunk[images])


def test_no_rows_give_no_rows() -> None:
    weight, none = f32(HIDDEN), torch.zeros(0, 16)
    assert ops.norm_quantize(bf16(0, HIDDEN), weight, 1e-6).scales.shape == (0, 8)
    assert ops.swiglu_quantize(bf16(0, 128), 10.0).codes.shape == (0, 64)
    assert ops.rotate_quantize_mxfp4(bf16(0, 2, 64), none, none)[0].shape == (0, 2, 32)
    assert ops.unrotate_quantize(bf16(0, 2, 64), none, none).codes.shape == (0, 128)
    advanced, read = ops.hc_advance(bf16(0, STREAMS, HIDDEN), bf16(0, HIDDEN), mix(0), weight, 1e-6)
    assert (advanced.shape, read.scales.shape) == ((0, STREAMS, HIDDEN), (0, 8))
    found = ops.hc_mix(bf16(0, STREAMS, HIDDEN), f32(24, STREAMS * HIDDEN), f32(3), f32(24), 1e-6, 1e-6, 20)
    assert found.carry.shape == (0, STREAMS, STREAMS)
    trunk, projected = bf16(0, STREAMS, HIDDEN), bf16(0, 5 * HIDDEN)
    assert ops.engram_update(trunk, projected, f32(STREAMS, HIDDEN), f32(STREAMS, HIDDEN), 1e-6).shape == trunk.shape


def test_other_types_and_shapes_are_refused_by_name() -> None:
    trunk, angle = bf16(2, STREAMS, HIDDEN), f32(2, 16)
    with pytest.raises(ConfigError, match=r"x has dtype torch\.float32; torch\.bfloat16 is required"):
        ops.norm_quantize(f32(2, 64), f32(64), 1e-6)
    with pytest.raises(ConfigError, match=r"gate_up has 96 columns; two halves of a multiple of 32"):
        ops.swiglu_quantize(bf16(2, 96), 10.0)
    with pytest.raises(ConfigError, match=r"cos has shape \[2, 16\]; \[3, rope / 2\] is expected"):
        ops.rotate_rows(bf16(3, 1, 64), angle, angle)
    with pytest.raises(ConfigError, match=r"x has 16 columns and cos 16; a multiple of 32 columns"):
        ops.unrotate_quantize(bf16(2, 1, 16), angle, angle)
    with pytest.raises(ConfigError, match=r"read has shape \[2, 3\]; \[2, 4\] is expected"):
        ops.hc_read(trunk, f32(2, 3), f32(HIDDEN), 1e-6)
    with pytest.raises(ConfigError, match=r"output has dtype torch\.float32"):
        ops.hc_advance(trunk, f32(2, HIDDEN), mix(2), f32(HIDDEN), 1e-6)
    with pytest.raises(ConfigError, match=r"fn has shape \[20, 1024\]; \[24, 1024\] is expected"):
        ops.hc_mix(trunk, f32(20, 1024), f32(3), f32(24), 1e-6, 1e-6, 20)
    with pytest.raises(ConfigError, match=r"projected has shape \[2, 1024\]; \[2, 1280\] is expected"):
        ops.engram_update(trunk, bf16(2, 1024), f32(STREAMS, HIDDEN), f32(STREAMS, HIDDEN), 1e-6)
    codes = torch.zeros(4, 32, dtype=torch.uint8)
    with pytest.raises(ConfigError, match=r"scales has shape \[4, 2\]; \[4, 1\] is expected"):
        ops.engram_lookup(codes, torch.zeros(4, 2, dtype=torch.uint8), torch.zeros(1, 1, dtype=torch.int64))
    with pytest.raises(ConfigError, match=r"codes has shape \[0, 32\]; at least one row"):
        ops.engram_lookup(codes[:0], codes[:0, :1], torch.zeros(1, 1, dtype=torch.int64))
