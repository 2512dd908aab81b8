"""Rows of the forward pass: products, norms, rotations, streams, experts, Engram."""

from __future__ import annotations

from typing import Any

import torch
from kernels_testing.row_cases import CARRIERS, FLOATS, ROWS, Op, integers, random, rows_of
from torch import Tensor

from thalweg.kernels.testing import RowCall, Rows

SIZES = [(64, 256), (256, 24), (256, 128), (256, 513), (1280, 64), (5120, 40), (64, 1), (768, 1), (5376, 1), (768, 2)]


@rows_of("matmul", counts=None, always_two_threads=True, dtype=CARRIERS, size=SIZES)
def matmul(dtype: torch.dtype, size: tuple[int, int]) -> RowCall:
    depth, width = size
    x, weight = random(ROWS, depth, dtype=dtype), random(width, depth, dtype=dtype, seed=1)
    return lambda op, ids: op(x[ids], weight)


@rows_of("grouped_matmul", dtype=CARRIERS)
def grouped_matmul(dtype: torch.dtype) -> RowCall:
    """Every row by two weights, whatever the groups' sizes."""
    x, weights = random(ROWS, 256, dtype=dtype), [random(40, 256, dtype=dtype, seed=seed) for seed in range(3)]

    def call(op: Op, ids: Tensor) -> Rows:
        group = ids % 3
        order = torch.argsort(group, stable=True)
        counts = [int((group == number).sum()) for number in range(3)]
        product = op(x[ids][order], counts, weights)
        return torch.empty_like(product).index_copy_(0, order, product)

    return call


@rows_of("rms_norm", counts=(1, 2, 3, 5, 8, 16, 17, 33), dtype=FLOATS, width=(31, 256, 5120, 20480))
def rms_norm(dtype: torch.dtype, width: int) -> RowCall:
    x, weight = random(ROWS, width, dtype=dtype), random(width, dtype=dtype)
    return lambda op, ids: op(x[ids], weight, 1e-20)


@rows_of("rope_table", counts=None)
def rope_table() -> RowCall:
    positions, frequencies = torch.arange(ROWS) * 977, 10000.0 ** -(torch.arange(32).float() / 32)
    return lambda op, ids: op(positions[ids], frequencies)


@rows_of("apply_rope", dtype=FLOATS, shape=[(4, 96), (96,)], inverse=[False, True])
def apply_rope(dtype: torch.dtype, shape: tuple[int, ...], inverse: bool) -> RowCall:
    x, angle = random(ROWS, *shape, dtype=dtype), random(ROWS, 32, dtype=torch.float32)
    return lambda op, ids: op(x[ids], angle[ids].cos(), angle[ids].sin(), inverse=inverse)


@rows_of("hc_mixes", dtype=CARRIERS, hidden=(64, 256))
def hc_mixes(dtype: torch.dtype, hidden: int) -> RowCall:
    x, fn = random(ROWS, 4, hidden, dtype=dtype), random(24, 4 * hidden, dtype=dtype, scale=0.05)
    return lambda op, ids: op(x[ids], fn, 1e-20)


@rows_of("hc_coefficients", num_rows=20, counts=(1, 2, 3, 16, 17), dtype=CARRIERS, streams=(2, 4, 7, 8, 16))
def hc_coefficients(dtype: torch.dtype, streams: int) -> RowCall:
    width = (2 + streams) * streams
    z, scale, base = random(20, width, dtype=dtype), random(3), random(width)
    return lambda op, ids: tuple(op(z[ids], scale, base, streams, 20, 1e-6))


@rows_of("hc_collapse", dtype=FLOATS, hidden=(64, 256))
def hc_collapse(dtype: torch.dtype, hidden: int) -> RowCall:
    x, pre = random(ROWS, 4, hidden, dtype=dtype), random(ROWS, 4, dtype=torch.promote_types(dtype, torch.float32))
    return lambda op, ids: op(x[ids], pre[ids])


@rows_of("hc_expand", dtype=FLOATS, hidden=(64, 256))
def hc_expand(dtype: torch.dtype, hidden: int) -> RowCall:
    x, y, post = random(ROWS, 4, hidden, dtype=dtype), random(ROWS, hidden, dtype=dtype), random(ROWS, 4)
    comb = random(ROWS, 4, 4)
    return lambda op, ids: op(x[ids], y[ids], post[ids], comb[ids])


@rows_of("gate_scores", dtype=FLOATS, experts=(8, 128, 384))
def gate_scores(dtype: torch.dtype, experts: int) -> RowCall:
    logits = random(ROWS, experts, dtype=dtype, scale=4)
    return lambda op, ids: op(logits[ids])


@rows_of("route", dtype=CARRIERS, experts=(8, 128, 384))
def route(dtype: torch.dtype, experts: int) -> RowCall:
    """Among them rows with equal scores, rows of images, and rows of nobody."""
    scores, bias = random(ROWS, experts, dtype=dtype).abs(), random(experts, scale=0.1)
    scores[::7] = 0.5
    images, nobody = torch.arange(ROWS) % 5 == 0, torch.arange(ROWS) % 11 == 3
    return lambda op, ids: tuple(op(scores[ids], bias, 6, 1.5, -bias, images[ids], ~nobody[ids]))


def gate_and_up(dtype: torch.dtype, width: int) -> tuple[Tensor, Tensor, Tensor]:
    return random(ROWS, width, dtype=dtype, scale=5), random(ROWS, width, dtype=dtype, seed=1), random(ROWS)


@rows_of("swiglu", dtype=FLOATS, width=(33, 64, 128))
def swiglu(dtype: torch.dtype, width: int) -> RowCall:
    gate, up, weights = gate_and_up(dtype, width)
    return lambda op, ids: op(gate[ids], up[ids], 10.0, weights[ids])


@rows_of("swiglu_psum", width=(33, 64))
def swiglu_psum(width: int) -> RowCall:
    """All rows in one group."""
    gate, up, weights = gate_and_up(torch.float32, width)
    both = torch.cat((gate, up), dim=1)
    return lambda op, ids: op(both[ids], 10.0, weights[ids], torch.tensor([ids.shape[0]]), 8)


def engram_rows(dtype: torch.dtype) -> list[Tensor]:
    return [random(ROWS, 4, 256, dtype=dtype, seed=seed) for seed in range(2)]


@rows_of("engram_gate", dtype=FLOATS)
def engram_gate(dtype: torch.dtype) -> RowCall:
    x, keys = engram_rows(dtype)
    q_weight, k_weight = random(4, 256), random(4, 256, seed=9)
    return lambda op, ids: op(x[ids], keys[ids], q_weight, k_weight, 1e-20)


@rows_of("engram_apply", dtype=FLOATS)
def engram_apply(dtype: torch.dtype) -> RowCall:
    x, values = engram_rows(dtype)
    gate, images = random(ROWS, 4), torch.arange(ROWS) % 6 == 2
    return lambda op, ids: op(x[ids], values[ids][:, 0], gate[ids], images[ids])


@rows_of("engram_hash")
def engram_hash() -> RowCall:
    ngrams, images = integers(0, 99_092, ROWS, 3), torch.arange(ROWS) % 6 == 2
    constants = integers(1, 2**40, 3, seed=1), integers(1000, 2000, 16, seed=2), integers(0, 9999, 16, seed=3)
    return lambda op, ids: op(ngrams[ids], *constants, images[ids])


@rows_of("ngram_window")
def ngram_window() -> RowCall:
    """Sequences of one new token each, some after an image."""
    tokens, history = integers(-1, 50, ROWS), integers(-1, 50, ROWS, 2, seed=1)
    return lambda op, ids: op(tokens[ids], history[ids], torch.ones_like(ids), 7)


@rows_of("target_feature", dtype=FLOATS)
def target_feature(dtype: torch.dtype) -> RowCall:
    trunk = random(ROWS, 4, 256, dtype=dtype)
    return lambda op, ids: op(trunk[ids])


@rows_of("confidence", dtype=FLOATS, has_markov=[False, True])
def confidence(dtype: torch.dtype, has_markov: bool) -> RowCall:
    hidden, markov = random(ROWS, 256, dtype=dtype), random(ROWS, 128, dtype=dtype)
    weight = random(256 + 128 * has_markov, dtype=torch.float32, scale=0.1)
    return lambda op, ids: op(hidden[ids], markov[ids] if has_markov else None, weight, 1.5)


def rounding(dtype: torch.dtype) -> RowCall:
    x = random(ROWS, 97, dtype=dtype)
    return lambda op, ids: op(x[ids])


for name in ("round_bf16", "round_f32"):
    rows_of(name, dtype=CARRIERS)(rounding)


def numbers() -> Any:
    """Streams of random numbers: a row is a seed with a position."""
    seeds, positions = integers(-(2**62), 2**62, ROWS), integers(0, 2**31, ROWS, seed=1)
    return lambda op, ids: op(seeds[ids], positions[ids], 1)


rows_of("uniform")(numbers)


@rows_of("splitmix_hash")
def splitmix_hash() -> RowCall:
    bits = integers(-(2**62), 2**62, ROWS, 33)
    return lambda op, ids: op(bits[ids])
