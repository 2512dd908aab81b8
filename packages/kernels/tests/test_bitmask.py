"""Bitmasks over the vocabulary: recorded results, a plain loop, and the form for devices against that of the CPU."""

from __future__ import annotations

import pytest
import torch
from hypothesis import given
from kernels_testing.masks import VALUES, Masks, masked_by_a_loop, random_masks, recorded_masks

from thalweg.interfaces import ConfigError
from thalweg.kernels import bind
from thalweg.kernels.reference import bitmask as reference
from thalweg.kernels.testing import RecordLoader, VectorLoader, same_bits

ops = bind("cpu", batch_invariant=True)


@pytest.mark.parametrize("place", range(4))
def test_recorded_masks_of_each_row_of_a_sequence_are_applied(place: int, vectors: VectorLoader) -> None:
    d = vectors("sampling/bitmask")
    has_grammar = torch.isin(torch.arange(len(d["ftp"])), d["indices"])
    rows = torch.where(has_grammar & (d["seqlen_q"] > place), d["ftp"] + place, -1)
    logits = d["logits"].clone()
    ops.apply_token_bitmask(logits, d["bitmask"], rows)
    assert torch.equal(logits, d[f"out_step{place}"])


@pytest.mark.parametrize("case", range(5))
def test_masks_recorded_with_the_columns_that_they_forbid_are_applied(case: int, recorded: RecordLoader) -> None:
    masks, expected = recorded_masks(recorded("sampling/apply_bitmask")[case])
    ops.apply_token_bitmask(*masks)
    assert torch.equal(masks.logits, expected)


@given(random_masks())
def test_a_mask_is_applied_as_by_a_loop(masks: Masks) -> None:
    expected = masked_by_a_loop(masks)
    ops.apply_token_bitmask(*masks)
    assert same_bits(masks.logits, expected)


@given(random_masks().filter(lambda masks: masks.rows.shape[0] > 0))
def test_the_form_for_devices_equals_that_of_the_cpu(masks: Masks) -> None:
    there = masks.logits.clone()
    reference.mask_on_host(*masks)
    reference.mask_on_device(there, masks.bitmask, masks.rows)
    assert same_bits(there, masks.logits)


@pytest.mark.parametrize("slab", [1, 70, 3 * 70 + 1])
def test_a_device_may_mask_any_number_of_rows_at_a_time(slab: int, monkeypatch: pytest.MonkeyPatch) -> None:
    generator = torch.Generator().manual_seed(6)
    logits, rows = torch.randn(11, 70, generator=generator), torch.tensor([3, -1, 10, 0, 7])
    bitmask = torch.randint(-(2**31), 2**31, (5, 3), generator=generator).int()
    expected = logits.clone()
    ops.apply_token_bitmask(expected, bitmask, rows)
    monkeypatch.setattr(reference, "SLAB_ELEMENTS", slab)
    reference.mask_on_device(logits, bitmask, rows)
    assert torch.equal(logits, expected)


@pytest.mark.parametrize("dtype", VALUES, ids=str)
def test_whatever_a_logit_is_it_stays_or_becomes_minus_infinity(dtype: torch.dtype) -> None:
    special = torch.tensor([torch.nan, torch.inf, -torch.inf, 0.0, -0.0, torch.finfo(dtype).tiny, -3.5], dtype=dtype)
    logits = special.repeat(2, 1)
    ops.apply_token_bitmask(logits, torch.tensor([[-1], [0]], dtype=torch.int32), torch.tensor([0, 1]))
    assert same_bits(logits[0], special)
    assert same_bits(logits[1], torch.full_like(special, -torch.inf))


def test_rows_may_lie_apart() -> None:
    logits = torch.zeros(4, 80)
    ops.apply_token_bitmask(logits[::2, 3:43], torch.tensor([[0, 0]], dtype=torch.int32), torch.tensor([1]))
    assert torch.isinf(logits).nonzero().tolist() == [[2, column] for column in range(3, 43)]


@pytest.mark.parametrize("shape", [(0, 5), (3, 0), (0, 0)])
def test_nothing_may_be_masked(shape: tuple[int, int]) -> None:
    logits = torch.zeros(2, 40)
    ops.apply_token_bitmask(logits, torch.zeros(shape, dtype=torch.int32), torch.arange(shape[0]) - 1)
    assert torch.equal(logits, torch.zeros(2, 40))


def test_bad_masks_are_named() -> None:
    logits, bitmask, rows = torch.zeros(2, 40), torch.zeros(1, 2, dtype=torch.int32), torch.tensor([0])
    with pytest.raises(ConfigError, match=r"bitmask has shape \[2\]; \[M, words\] is expected"):
        ops.apply_token_bitmask(logits, torch.zeros(2, dtype=torch.int32), rows)
    with pytest.raises(ConfigError, match=r"rows has shape \[1\]; \[2\] is expected"):
        ops.apply_token_bitmask(logits, torch.zeros(2, 2, dtype=torch.int32), rows)
    with pytest.raises(ConfigError, match=r"bitmask has dtype torch\.int64; int32 is required"):
        ops.apply_token_bitmask(logits, bitmask.long(), rows)
    with pytest.raises(ConfigError, match=r"rows has dtype torch\.float32; integers are required"):
        ops.apply_token_bitmask(logits, bitmask, rows.float())
    with pytest.raises(ConfigError, match=r"logits has dtype torch\.int64; a float of 16, 32 or 64 bits is required"):
        ops.apply_token_bitmask(logits.long(), bitmask, rows)
    with pytest.raises(ConfigError, match=r"logits has shape \[40\]; \[T, V\] is expected"):
        ops.apply_token_bitmask(logits[0], bitmask, rows)
