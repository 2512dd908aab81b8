"""Rows of keys on their way into the cache."""

from __future__ import annotations

import torch
from kernels_testing.row_cases import ROWS, Op, integers, random, rows_of, written
from torch import Tensor

from thalweg.kernels import RecordFormat
from thalweg.kernels.testing import RowCall, Rows

WIDTH, ROPE, ENTRIES, EPS = 64, 32, 4, 1e-6
DTYPES = (torch.bfloat16, torch.float32)


def arguments(dtype: torch.dtype) -> tuple[Tensor, Tensor, Tensor, Tensor]:
    """x [ROWS, WIDTH] of many magnitudes, weight, cos and sin [ROWS, ROPE / 2]."""
    x = random(ROWS, WIDTH, dtype=dtype)
    x *= torch.logspace(-9, 9, ROWS).unsqueeze(-1).to(dtype)
    x[5] = 0
    angles = integers(0, 5000, ROWS).unsqueeze(-1) * random(ROPE // 2, dtype=torch.float32, seed=2)
    return x, 1 + 0.1 * random(WIDTH, dtype=torch.float32, seed=1), torch.cos(angles), torch.sin(angles)


@rows_of("norm_rope", dtype=DTYPES)
def norm_rope(dtype: torch.dtype) -> RowCall:
    x, weight, cos, sin = arguments(dtype)
    return lambda op, ids: op(x[ids], weight, EPS, cos[ids], sin[ids])


@rows_of("norm_rope_store", dtype=DTYPES, format_name=["MXFP8", "FP4_MAIN", "MXFP4_INDEX"])
def norm_rope_store(dtype: torch.dtype, format_name: str) -> RowCall:
    """Every seventh row goes nowhere; the page of a row is part of the result. Repeated rows are written once."""
    (x, weight, cos, sin), record_format = arguments(dtype), RecordFormat[format_name]
    empty = torch.zeros(ROWS, ENTRIES, 1, record_format.record_bytes(WIDTH), dtype=torch.uint8)

    def call(op: Op, ids: Tensor) -> Rows:
        given, place = ids.unique(return_inverse=True)
        slots = torch.where(given % 7 == 3, -1, given * ENTRIES + given % ENTRIES).int()
        normed: list[Tensor] = []

        def write(view: Tensor) -> None:
            normed.append(op(x[given], weight, EPS, cos[given], sin[given], view, slots, record_format))

        pages = written(empty, write)
        return normed[0][place], pages[ids]

    return call
