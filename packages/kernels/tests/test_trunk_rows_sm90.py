"""Hyper-connections, Engram and the drafter's heads on Hopper: the reference, and rows whose bits are their own."""

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
    there,
)
from kernels_testing.row_cases import Op, integers, random
from torch import Tensor

from thalweg.kernels import HcMix
from thalweg.kernels.testing import Rows, relative_error

pytestmark = [pytest.mark.gpu, pytest.mark.sm90]

EPS = 1e-6
STREAMS = 4
HIDDEN = (256, 5120)
MIX_ERROR = 5e-6
FLIPPED = 1e-3
"""Share of bfloat16 results that may be one step away: sums of a few float32 in another order, rounded once more."""


def bf16(*shape: int, seed: int = 0) -> Tensor:
    return random(*shape, dtype=torch.bfloat16, seed=seed)


def f32(*shape: int, seed: int = 0) -> Tensor:
    return random(*shape, dtype=torch.float32, seed=seed)


def mix(rows: int) -> HcMix:
    """As hyper-connections make them: positive, and carried weights that sum to one."""
    return HcMix(f32(rows, STREAMS).sigmoid(), 2 * f32(rows, STREAMS, seed=1).sigmoid(), f32(rows, 4, 4).softmax(1))


def apart(found: Tensor, expected: Tensor, share: float = FLIPPED, steps: int = 1) -> str:
    """What is wrong with bfloat16 results that may differ by a step in a share of places, or where terms cancel."""
    _, found_share = bf16_steps(found, expected)
    difference = (found.float() - expected.float()).abs()
    excess = float((difference - steps * 2**-7 * expected.float().abs() - 2**-14).max()) if found.numel() else 0.0
    return "" if found_share < share and excess <= 0 else f"share {found_share}, {excess} beyond {steps} steps"


@pytest.mark.parametrize("hidden", HIDDEN)
@pytest.mark.parametrize("rows", ROW_COUNTS)
def test_the_trunk_is_read_and_advanced(rows: int, hidden: int, hopper: torch.device) -> None:
    trunk, output, weight, coefficients = bf16(rows, STREAMS, hidden), bf16(rows, hidden), bf16(hidden), mix(rows)
    read, expected = compute("hc_read", hopper, trunk, coefficients.next_read, weight, EPS)
    # A mix that is rounded another way is normed, and rounded again.
    assert apart(read.rows, expected.rows, steps=2) == ""
    assert equal(read.quantized, reference.quantize_mxfp8(read.rows))
    collapsed, expected = compute("hc_collapse", hopper, trunk, coefficients.next_read)
    assert apart(collapsed, expected) == ""
    (advanced, after), (expected, _) = compute("hc_advance", hopper, trunk, output, coefficients, weight, EPS)
    assert apart(advanced, expected) == ""
    again = kernels.hc_read(*there((advanced, coefficients.next_read, weight), hopper), EPS)
    assert equal(after, here(again))


@pytest.mark.parametrize("hidden", HIDDEN)
def test_bits_of_a_row_of_the_trunk_are_its_own(hidden: int, hopper: torch.device) -> None:
    rows, weight = by_row(bf16(65, STREAMS, hidden), bf16(65, hidden), *mix(65)), f32(hidden).to(hopper)

    def read(op: Op, ids: Tensor) -> Rows:
        trunk, _, next_read, *_ = rows(ids)
        return joined(op(trunk, next_read, weight, EPS))

    def advance(op: Op, ids: Tensor) -> Rows:
        trunk, output, *coefficients = rows(ids)
        return joined(op(trunk, output, HcMix(*coefficients), weight, EPS))

    def collapse(op: Op, ids: Tensor) -> Rows:
        trunk, _, next_read, *_ = rows(ids)
        return op(trunk, next_read)

    assert keeps_promises("hc_read", read) == []
    assert keeps_promises("hc_advance", advance) == []
    assert keeps_promises("hc_collapse", collapse) == []


@pytest.mark.parametrize("streams", [2, 4])
@pytest.mark.parametrize("hidden", [64, *HIDDEN])
@pytest.mark.parametrize("rows", [*ROW_COUNTS, 300, 600, 2049])
def test_coefficients_are_those_of_the_reference(rows: int, hidden: int, streams: int, hopper: torch.device) -> None:
    """Up to the last bits of sums of 20,480 products, which tensor cores truncate."""
    mixes = (2 + streams) * streams
    fn, scale, base = f32(mixes, streams * hidden) / hidden**0.5, f32(3), f32(mixes)
    found, expected = compute("hc_mix", hopper, bf16(rows, streams, hidden), fn, scale, base, EPS, EPS, 20)
    for one, other in zip(found, expected, strict=True):
        assert one.shape == other.shape
        assert not rows or relative_error(one, other) < MIX_ERROR


@pytest.mark.parametrize("hidden", HIDDEN)
def test_bits_of_coefficients_are_the_same_in_small_and_large_batches(hidden: int, hopper: torch.device) -> None:
    rows, fn = by_row(bf16(65, STREAMS, hidden)), (f32(24, STREAMS * hidden) / hidden**0.5).to(hopper)
    scale, base = f32(3).to(hopper), f32(24).to(hopper)

    def call(op: Op, ids: Tensor) -> Rows:
        return joined(op(*rows(ids), fn, scale, base, EPS, EPS, 20))

    assert keeps_promises("hc_mix", call) == []
    ids = torch.arange(65, device=hopper).repeat(70)
    few = call(kernels.hc_mix, ids[:65])
    for count in (300, 600, 1500, 3000, len(ids)):  # each divided among blocks in another way
        assert equal(tuple(part[ids[:count]] for part in few), call(kernels.hc_mix, ids[:count]))


@pytest.mark.parametrize("hidden", HIDDEN)
@pytest.mark.parametrize("has_images", [False, True])
@pytest.mark.parametrize("rows", [*ROW_COUNTS, 300])
def test_the_gated_value_is_added(rows: int, has_images: bool, hidden: int, hopper: torch.device) -> None:
    trunk, projected = bf16(rows, STREAMS, hidden), bf16(rows, (STREAMS + 1) * hidden)
    weights = bf16(STREAMS, hidden, seed=1), bf16(STREAMS, hidden, seed=2)
    images = torch.arange(rows) % 3 == 1 if has_images else None
    if images is not None:
        trunk[..., 5] = -0.0
        projected[images] = torch.nan
    found, expected = compute("engram_update", hopper, trunk, projected, *weights, EPS, images)
    assert apart(found, expected, 1e-2) == ""
    if images is not None:
        assert equal(found[images], trunk[images])


@pytest.mark.parametrize("hidden", HIDDEN)
def test_bits_of_a_row_with_a_gated_value_are_its_own(hidden: int, hopper: torch.device) -> None:
    rows = by_row(bf16(300, STREAMS, hidden), bf16(300, 5 * hidden), torch.arange(300) % 7 == 2)
    weights = there((f32(STREAMS, hidden, seed=1), f32(STREAMS, hidden, seed=2)), hopper)

    def call(op: Op, ids: Tensor) -> Rows:
        trunk, projected, images = rows(ids)
        return op(trunk, projected, *weights, EPS, images)

    assert keeps_promises("engram_update", call, num_rows=300) == []


@pytest.mark.parametrize(("sizes", "columns"), [(3, 12), (4, 24)])
@pytest.mark.parametrize("has_images", [False, True])
@pytest.mark.parametrize("rows", ROW_COUNTS)
def test_hashes_are_those_of_the_reference(
    rows: int, has_images: bool, sizes: int, columns: int, hopper: torch.device
) -> None:
    """Of products beyond 63 bits, too, whose remainders are those of negative numbers."""
    windows = integers(0, 99_092, rows, sizes)
    multipliers, primes = integers(1, 2**62, sizes, seed=1), integers(10**6, 10**9, columns, seed=2)
    images = torch.arange(rows) % 4 == 1 if has_images else None
    arguments = (windows, multipliers, primes, integers(0, 10**9, columns, seed=3), images)
    assert equal(*compute("engram_hash", hopper, *arguments))


@pytest.mark.parametrize(("width", "columns"), [(32, 12), (256, 24)])
@pytest.mark.parametrize("rows", ROW_COUNTS)
def test_rows_of_the_table_are_found(rows: int, width: int, columns: int, hopper: torch.device) -> None:
    codes, scales = (integers(0, 256, 999, size, seed=size).to(torch.uint8) for size in (width, width // 32))
    buckets = integers(0, 999, rows, columns)
    buckets[::3] = -1
    assert equal(*compute("engram_lookup", hopper, codes, scales, buckets))


@pytest.mark.parametrize("hidden", HIDDEN)
@pytest.mark.parametrize("rows", ROW_COUNTS)
def test_features_are_those_of_the_reference(rows: int, hidden: int, hopper: torch.device) -> None:
    assert equal(*compute("target_feature", hopper, bf16(rows, STREAMS, hidden)))
    if rows == ROW_COUNTS[-1]:
        trunk = by_row(bf16(65, STREAMS, hidden))
        assert keeps_promises("target_feature", lambda op, ids: op(*trunk(ids))) == []


@pytest.mark.parametrize("markov", [0, 64, 256])
@pytest.mark.parametrize("hidden", HIDDEN)
@pytest.mark.parametrize("rows", ROW_COUNTS)
def test_confidence_is_that_of_the_reference(rows: int, hidden: int, markov: int, hopper: torch.device) -> None:
    hidden_rows, weight = bf16(rows, hidden), f32(hidden + markov) / hidden**0.5
    markov_rows = bf16(rows, markov, seed=3) if markov else None
    found, expected = compute("confidence", hopper, hidden_rows, markov_rows, weight, 1.5)
    assert not rows or relative_error(found, expected) < 1e-6
    if rows == ROW_COUNTS[-1] and markov:
        rows_of, there_weight = by_row(bf16(65, hidden), bf16(65, markov)), weight.to(hopper)
        assert keeps_promises("confidence", lambda op, ids: op(*rows_of(ids), there_weight, 1.5)) == []
