"""Rows of fused steps of the forward pass, at the small model's dimensions."""

from __future__ import annotations

import torch
from kernels_testing.row_cases import ROWS, Op, integers, random, rows_of, written

from thalweg.kernels import HcMix
from thalweg.kernels.testing import RowCall, Rows

STREAMS, HIDDEN, MIXES = 4, 256, 24


def bf16(*shape: int, seed: int = 0, scale: float = 1.0) -> torch.Tensor:
    return random(*shape, dtype=torch.bfloat16, seed=seed, scale=scale)


def f32(*shape: int, seed: int = 0, scale: float = 1.0) -> torch.Tensor:
    return random(*shape, dtype=torch.float32, seed=seed, scale=scale)


@rows_of("norm_quantize", width=(128, 256))
def norm_quantize(width: int) -> RowCall:
    x, weight = bf16(ROWS, width), f32(width)
    return lambda op, ids: tuple(op(x[ids], weight, 1e-6))


@rows_of("swiglu_quantize", is_weighted=[False, True])
def swiglu_quantize(is_weighted: bool) -> RowCall:
    gate_up, weights = bf16(ROWS, 256, scale=5), f32(ROWS)
    return lambda op, ids: tuple(op(gate_up[ids], 10.0, weights[ids] if is_weighted else None))


@rows_of("rotate_rows")
def rotate_rows() -> RowCall:
    x, angle = bf16(ROWS, 8, 64), f32(ROWS, 16)
    return lambda op, ids: written(x[ids], lambda rows: op(rows, angle[ids].cos(), angle[ids].sin()))


@rows_of("rotate_quantize_mxfp4")
def rotate_quantize_mxfp4() -> RowCall:
    x, angle = bf16(ROWS, 8, 64), f32(ROWS, 16)
    return lambda op, ids: op(x[ids], angle[ids].cos(), angle[ids].sin())


@rows_of("unrotate_quantize")
def unrotate_quantize() -> RowCall:
    x, angle = bf16(ROWS, 8, 64), f32(ROWS, 16)
    return lambda op, ids: tuple(op(x[ids], angle[ids].cos(), angle[ids].sin()))


def mix() -> HcMix:
    return HcMix(f32(ROWS, STREAMS), f32(ROWS, STREAMS, seed=1), f32(ROWS, STREAMS, STREAMS))


@rows_of("hc_read")
def hc_read() -> RowCall:
    trunk, read, weight = bf16(ROWS, STREAMS, HIDDEN), mix().next_read, f32(HIDDEN)
    return lambda op, ids: tuple(op(trunk[ids], read[ids], weight, 1e-6))


@rows_of("hc_advance")
def hc_advance() -> RowCall:
    trunk, output, weight, coefficients = bf16(ROWS, STREAMS, HIDDEN), bf16(ROWS, HIDDEN), f32(HIDDEN), mix()

    def call(op: Op, ids: torch.Tensor) -> Rows:
        advanced, read = op(trunk[ids], output[ids], HcMix(*(part[ids] for part in coefficients)), weight, 1e-6)
        return (advanced, *read)

    return call


@rows_of("hc_mix")
def hc_mix() -> RowCall:
    trunk, fn = bf16(ROWS, STREAMS, HIDDEN), f32(MIXES, STREAMS * HIDDEN, scale=0.05)
    scale, base = f32(3), f32(MIXES)
    return lambda op, ids: tuple(op(trunk[ids], fn, scale, base, 1e-6, 1e-6, 20))


@rows_of("engram_lookup")
def engram_lookup() -> RowCall:
    codes, scales = (integers(0, 256, 40, width, seed=width).to(torch.uint8) for width in (32, 1))
    buckets = integers(-1, 40, ROWS, 12)
    return lambda op, ids: tuple(op(codes, scales, buckets[ids]))


@rows_of("engram_update")
def engram_update() -> RowCall:
    trunk, projected = bf16(ROWS, STREAMS, HIDDEN), bf16(ROWS, (STREAMS + 1) * HIDDEN)
    weights, images = [f32(STREAMS, HIDDEN, seed=seed) for seed in range(2)], torch.arange(ROWS) % 6 == 2
    return lambda op, ids: op(trunk[ids], projected[ids], *weights, 1e-6, images[ids])
