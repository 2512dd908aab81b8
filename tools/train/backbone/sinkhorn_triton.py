"""The steps of `sinkhorn` for four streams, as one Triton kernel each way: a row's 4 x 4 matrix stays in registers."""

# ruff: noqa: ANN001, ANN202
# mypy: disable-error-code="no-untyped-def, untyped-decorator, import-untyped, import-not-found"

from __future__ import annotations

import torch
import triton
import triton.language as tl
from torch import Tensor

from thalweg.interfaces import ConfigError

_ROWS_PER_PROGRAM = 128
_NUM_WARPS = 4


def forward(logits: Tensor, iterations: int, eps: float) -> tuple[Tensor, Tensor]:
    """The carry of logits float32 [n, 4, 4], and denominators [2 iterations - 1, 4, n]: columns, then rows, in turn."""
    if logits.shape[1:] != (4, 4):
        raise ConfigError(f"logits have shape {list(logits.shape)}; [n, 4, 4] is expected, 4 streams")
    rows = logits.shape[0]
    carry = torch.empty_like(logits)
    denominators = logits.new_empty(2 * iterations - 1, 4, rows)
    grid = (triton.cdiv(rows, _ROWS_PER_PROGRAM),)
    _forward[grid](logits, carry, denominators, rows, eps, iterations, _ROWS_PER_PROGRAM, num_warps=_NUM_WARPS)
    return carry, denominators


def backward(carry: Tensor, denominators: Tensor, gradient: Tensor, eps: float) -> Tensor:
    """The gradient of the logits."""
    rows = carry.shape[0]
    result = torch.empty_like(carry)
    iterations = (denominators.shape[0] + 1) // 2
    grid = (triton.cdiv(rows, _ROWS_PER_PROGRAM),)
    _backward[grid](
        carry, denominators, gradient, result, rows, eps, iterations, _ROWS_PER_PROGRAM, num_warps=_NUM_WARPS
    )
    return result


@triton.jit
def _read(base, row, mask, i: tl.constexpr):
    """Row i of every matrix: four vectors."""
    at = base + row * 16 + i * 4
    return (
        tl.load(at, mask=mask, other=0.0),
        tl.load(at + 1, mask=mask, other=0.0),
        tl.load(at + 2, mask=mask, other=0.0),
        tl.load(at + 3, mask=mask, other=0.0),
    )


@triton.jit
def _write(base, row, mask, i: tl.constexpr, x0, x1, x2, x3):
    at = base + row * 16 + i * 4
    tl.store(at, x0, mask=mask)
    tl.store(at + 1, x1, mask=mask)
    tl.store(at + 2, x2, mask=mask)
    tl.store(at + 3, x3, mask=mask)


@triton.jit
def _read_step(base, step, rows, row, mask):
    """The four denominators of a division."""
    at = base + step * 4 * rows + row
    return (
        tl.load(at, mask=mask, other=1.0),
        tl.load(at + rows, mask=mask, other=1.0),
        tl.load(at + 2 * rows, mask=mask, other=1.0),
        tl.load(at + 3 * rows, mask=mask, other=1.0),
    )


@triton.jit
def _write_step(base, step, rows, row, mask, d0, d1, d2, d3):
    at = base + step * 4 * rows + row
    tl.store(at, d0, mask=mask)
    tl.store(at + rows, d1, mask=mask)
    tl.store(at + 2 * rows, d2, mask=mask)
    tl.store(at + 3 * rows, d3, mask=mask)


@triton.jit
def _softmax(x0, x1, x2, x3, eps):
    peak = tl.maximum(tl.maximum(x0, x1), tl.maximum(x2, x3))
    x0, x1, x2, x3 = tl.exp(x0 - peak), tl.exp(x1 - peak), tl.exp(x2 - peak), tl.exp(x3 - peak)
    total = x0 + x1 + x2 + x3
    return x0 / total + eps, x1 / total + eps, x2 / total + eps, x3 / total + eps


@triton.jit
def _undo(y0, y1, y2, y3, g0, g1, g2, g3, d):
    """Values and gradients before y = x / d, with d the sum of the four x plus eps."""
    dot = y0 * g0 + y1 * g1 + y2 * g2 + y3 * g3
    return y0 * d, y1 * d, y2 * d, y3 * d, (g0 - dot) / d, (g1 - dot) / d, (g2 - dot) / d, (g3 - dot) / d


@triton.jit
def _softmax_gradient(y0, y1, y2, y3, g0, g1, g2, g3, eps):
    y0, y1, y2, y3 = y0 - eps, y1 - eps, y2 - eps, y3 - eps
    dot = y0 * g0 + y1 * g1 + y2 * g2 + y3 * g3
    return y0 * (g0 - dot), y1 * (g1 - dot), y2 * (g2 - dot), y3 * (g3 - dot)


@triton.jit
def _forward(logits, carry, denominators, rows, eps, ITERATIONS: tl.constexpr, SIZE: tl.constexpr):
    row = tl.program_id(0) * SIZE + tl.arange(0, SIZE)
    mask = row < rows
    a0, a1, a2, a3 = _read(logits, row, mask, 0)
    b0, b1, b2, b3 = _read(logits, row, mask, 1)
    c0, c1, c2, c3 = _read(logits, row, mask, 2)
    e0, e1, e2, e3 = _read(logits, row, mask, 3)
    a0, a1, a2, a3 = _softmax(a0, a1, a2, a3, eps)
    b0, b1, b2, b3 = _softmax(b0, b1, b2, b3, eps)
    c0, c1, c2, c3 = _softmax(c0, c1, c2, c3, eps)
    e0, e1, e2, e3 = _softmax(e0, e1, e2, e3, eps)
    for step in range(ITERATIONS):
        if step > 0:
            d0, d1, d2, d3 = (
                a0 + a1 + a2 + a3 + eps,
                b0 + b1 + b2 + b3 + eps,
                c0 + c1 + c2 + c3 + eps,
                e0 + e1 + e2 + e3 + eps,
            )
            a0, a1, a2, a3 = a0 / d0, a1 / d0, a2 / d0, a3 / d0
            b0, b1, b2, b3 = b0 / d1, b1 / d1, b2 / d1, b3 / d1
            c0, c1, c2, c3 = c0 / d2, c1 / d2, c2 / d2, c3 / d2
            e0, e1, e2, e3 = e0 / d3, e1 / d3, e2 / d3, e3 / d3
            _write_step(denominators, 2 * step - 1, rows, row, mask, d0, d1, d2, d3)
        d0, d1, d2, d3 = (
            a0 + b0 + c0 + e0 + eps,
            a1 + b1 + c1 + e1 + eps,
            a2 + b2 + c2 + e2 + eps,
            a3 + b3 + c3 + e3 + eps,
        )
        a0, a1, a2, a3 = a0 / d0, a1 / d1, a2 / d2, a3 / d3
        b0, b1, b2, b3 = b0 / d0, b1 / d1, b2 / d2, b3 / d3
        c0, c1, c2, c3 = c0 / d0, c1 / d1, c2 / d2, c3 / d3
        e0, e1, e2, e3 = e0 / d0, e1 / d1, e2 / d2, e3 / d3
        _write_step(denominators, 2 * step, rows, row, mask, d0, d1, d2, d3)
    _write(carry, row, mask, 0, a0, a1, a2, a3)
    _write(carry, row, mask, 1, b0, b1, b2, b3)
    _write(carry, row, mask, 2, c0, c1, c2, c3)
    _write(carry, row, mask, 3, e0, e1, e2, e3)


@triton.jit
def _backward(carry, denominators, gradient, result, rows, eps, ITERATIONS: tl.constexpr, SIZE: tl.constexpr):
    row = tl.program_id(0) * SIZE + tl.arange(0, SIZE)
    mask = row < rows
    a0, a1, a2, a3 = _read(carry, row, mask, 0)
    b0, b1, b2, b3 = _read(carry, row, mask, 1)
    c0, c1, c2, c3 = _read(carry, row, mask, 2)
    e0, e1, e2, e3 = _read(carry, row, mask, 3)
    p0, p1, p2, p3 = _read(gradient, row, mask, 0)
    q0, q1, q2, q3 = _read(gradient, row, mask, 1)
    r0, r1, r2, r3 = _read(gradient, row, mask, 2)
    s0, s1, s2, s3 = _read(gradient, row, mask, 3)
    for back in range(ITERATIONS):
        step = ITERATIONS - 1 - back
        d0, d1, d2, d3 = _read_step(denominators, 2 * step, rows, row, mask)
        a0, b0, c0, e0, p0, q0, r0, s0 = _undo(a0, b0, c0, e0, p0, q0, r0, s0, d0)
        a1, b1, c1, e1, p1, q1, r1, s1 = _undo(a1, b1, c1, e1, p1, q1, r1, s1, d1)
        a2, b2, c2, e2, p2, q2, r2, s2 = _undo(a2, b2, c2, e2, p2, q2, r2, s2, d2)
        a3, b3, c3, e3, p3, q3, r3, s3 = _undo(a3, b3, c3, e3, p3, q3, r3, s3, d3)
        if step > 0:
            d0, d1, d2, d3 = _read_step(denominators, 2 * step - 1, rows, row, mask)
            a0, a1, a2, a3, p0, p1, p2, p3 = _undo(a0, a1, a2, a3, p0, p1, p2, p3, d0)
            b0, b1, b2, b3, q0, q1, q2, q3 = _undo(b0, b1, b2, b3, q0, q1, q2, q3, d1)
            c0, c1, c2, c3, r0, r1, r2, r3 = _undo(c0, c1, c2, c3, r0, r1, r2, r3, d2)
            e0, e1, e2, e3, s0, s1, s2, s3 = _undo(e0, e1, e2, e3, s0, s1, s2, s3, d3)
    p0, p1, p2, p3 = _softmax_gradient(a0, a1, a2, a3, p0, p1, p2, p3, eps)
    q0, q1, q2, q3 = _softmax_gradient(b0, b1, b2, b3, q0, q1, q2, q3, eps)
    r0, r1, r2, r3 = _softmax_gradient(c0, c1, c2, c3, r0, r1, r2, r3, eps)
    s0, s1, s2, s3 = _softmax_gradient(e0, e1, e2, e3, s0, s1, s2, s3, eps)
    _write(result, row, mask, 0, p0, p1, p2, p3)
    _write(result, row, mask, 1, q0, q1, q2, q3)
    _write(result, row, mask, 2, r0, r1, r2, r3)
    _write(result, row, mask, 3, s0, s1, s2, s3)
