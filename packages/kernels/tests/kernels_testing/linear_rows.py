"""Rows of the dense linears on stored weights, and of the gate in one op."""

from __future__ import annotations

import torch
from kernels_testing.row_cases import ROWS, integers, random, rows_of

from thalweg.kernels import Mxfp8Rows, bind
from thalweg.kernels.testing import RowCall

MANY = (1, 2, 7, 8, 9, 33, 64)
ops = bind("cpu")


def quantized(width: int, dtype: torch.dtype = torch.float32) -> Mxfp8Rows:
    return Mxfp8Rows(*ops.quantize_mxfp8(random(ROWS, width, dtype=dtype)))


@rows_of("fp8_linear", counts=MANY, size=[(96, 64), (256, 32)])
def fp8_linear(size: tuple[int, int]) -> RowCall:
    depth, width = size
    x = quantized(depth)
    weight = ops.pack_fp8_weight(*ops.quantize_fp8_weight(random(width, depth, seed=1)))
    return lambda op, ids: op(Mxfp8Rows(x.codes[ids], x.scales[ids]), weight)


@rows_of("grouped_fp8_linear", counts=MANY, groups=[1, 3])
def grouped_fp8_linear(groups: int) -> RowCall:
    x = quantized(64 * groups)
    weight = ops.pack_fp8_weight(*ops.quantize_fp8_weight(random(32 * groups, 64, seed=1)))
    return lambda op, ids: op(Mxfp8Rows(x.codes[ids], x.scales[ids]), weight, groups)


@rows_of("bf16_linear", counts=MANY, dtype=[torch.bfloat16, torch.float32], size=[(256, 24), (64, 1)])
def bf16_linear(dtype: torch.dtype, size: tuple[int, int]) -> RowCall:
    depth, width = size
    x, weight = random(ROWS, depth, dtype=torch.bfloat16), random(width, depth, dtype=torch.bfloat16, seed=1)
    return lambda op, ids: op(x[ids], weight, dtype)


@rows_of("topk_gate", experts=(8, 384))
def topk_gate(experts: int) -> RowCall:
    """Among them rows with equal logits, rows of images, and rows of nobody."""
    logits, bias = random(ROWS, experts, dtype=torch.float32, scale=4), random(experts, dtype=torch.float32, scale=0.1)
    logits[::7] = integers(0, 2, experts).float()
    images, nobody = torch.arange(ROWS) % 5 == 0, torch.arange(ROWS) % 11 == 3
    return lambda op, ids: op(logits[ids], bias, 6, 1.5, -bias, images[ids], ~nobody[ids])
