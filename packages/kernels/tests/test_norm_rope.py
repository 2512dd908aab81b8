"""Norm, rotation and store as one op: equal to the ops one after the other, and what it refuses."""

from __future__ import annotations

import pytest
import torch
from torch import Tensor

from thalweg.interfaces import ConfigError
from thalweg.kernels import RecordFormat, bind
from thalweg.kernels.testing import same_bits

ops = bind("cpu", batch_invariant=True)
FORMATS = [RecordFormat.MXFP8, RecordFormat.FP4_MAIN, RecordFormat.MXFP4_INDEX]
EPS = 1e-6


def arguments(rows: int, width: int = 64, rope: int = 32) -> tuple[Tensor, Tensor, float, Tensor, Tensor]:
    generator = torch.Generator().manual_seed(rows + width)
    x = torch.randn(rows, 2 * width, generator=generator).bfloat16()[:, width // 2 : width // 2 + width]
    angles = torch.rand(rows, rope // 2, generator=generator) * 100
    return x, torch.rand(width, generator=generator) + 0.5, EPS, angles.cos(), angles.sin()


@pytest.mark.parametrize("rows", [0, 1, 7])
def test_rows_are_normed_rounded_rotated_and_rounded(rows: int) -> None:
    x, weight, eps, cos, sin = arguments(rows)
    normed = ops.round_bf16(ops.rms_norm(x.float(), weight, eps))
    expected = ops.apply_rope(normed, cos, sin).bfloat16()
    assert same_bits(ops.norm_rope(x, weight, eps, cos, sin), expected)


def test_float32_rows_are_rounded_before_they_are_normed() -> None:
    x, weight, eps, cos, sin = arguments(9)
    fine = x.float() * (1 + 2.0**-10)
    assert same_bits(ops.norm_rope(fine, weight, eps, cos, sin), ops.norm_rope(fine.bfloat16(), weight, eps, cos, sin))


@pytest.mark.parametrize("record_format", FORMATS, ids=lambda item: item.name)
@pytest.mark.parametrize("rows", [0, 1, 7])
def test_the_rotated_rows_are_stored_and_the_normed_ones_returned(rows: int, record_format: RecordFormat) -> None:
    given = arguments(rows)
    record = record_format.record_bytes(64)
    pages = torch.full((3, 4 * record + 10), 0xA5, dtype=torch.uint8)
    other = pages.clone()
    slots = torch.tensor([11, -1, 0, 3, 4, 7, 8], dtype=torch.int32)[:rows]

    def view(of: Tensor) -> Tensor:
        return of[:, : 4 * record].view(3, 4, 1, record)

    normed = ops.norm_rope_store(*given, view(pages), slots, record_format)
    ops.store_records(view(other), slots, ops.norm_rope(*given), record_format)
    assert same_bits(normed, ops.rms_norm(given[0], given[1], given[2]))
    assert torch.equal(pages, other)


@pytest.mark.parametrize(
    ("change", "message"),
    [
        ({"x": torch.zeros(4, 64, dtype=torch.float64)}, r"x has dtype torch.float64; bfloat16 or float32 is required"),
        ({"x": torch.zeros(4, 2, 64)}, r"x has shape \[4, 2, 64\]; \[n, D\] is expected"),
        ({"weight": torch.zeros(32)}, r"weight has shape \[32\]; \[64\] is expected"),
        ({"cos": torch.zeros(3, 16)}, r"cos has shape \[3, 16\]; \[4, rope / 2\] is expected"),
        ({"sin": torch.zeros(4, 8)}, r"sin has shape \[4, 8\]; \[4, 16\] is expected"),
        ({"sin": torch.zeros(4, 16).bfloat16()}, r"sin has dtype torch.bfloat16; float32 is required"),
        ({"cos": torch.zeros(4, 33), "sin": torch.zeros(4, 33)}, r"cos has 33 columns for rows of 64; 1 to 32 are"),
    ],
)
def test_arguments_that_do_not_go_together_are_named(change: dict[str, Tensor], message: str) -> None:
    x, weight, eps, cos, sin = arguments(4)
    given = {"x": x, "weight": weight, "eps": eps, "cos": cos, "sin": sin, **change}
    with pytest.raises(ConfigError, match=message):
        ops.norm_rope(**given)
