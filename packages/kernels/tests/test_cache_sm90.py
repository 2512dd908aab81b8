"""Records on Hopper: the bytes of the reference in the slots that are named, and nothing anywhere else."""

from __future__ import annotations

import pytest
import torch
from kernels_testing.record_pages import (
    FP4_MAIN,
    MXFP4_INDEX,
    MXFP8,
    PAGES,
    Pages,
    distinct_slots,
    rows_of_every_magnitude,
)
from torch import Tensor

from thalweg.interfaces import ConfigError
from thalweg.kernels import RecordFormat, bind
from thalweg.kernels.testing import relative_error, same_bits

reference = bind("cpu", batch_invariant=True)
kernels = bind("sm90")
EPS = 1e-6


def check_store(pages: Pages, rows: Tensor, slots: Tensor, device: torch.device) -> None:
    expected = pages.make()
    there = expected.to(device)
    reference.store_records(pages.view(expected), slots, rows, pages.record_format)
    kernels.store_records(pages.view(there), slots.to(device), rows.to(device), pages.record_format)
    assert torch.equal(there.cpu(), expected)


def check_gather(pages: Pages, filled: Tensor, slots: Tensor, device: torch.device) -> None:
    there = filled.to(device)
    for dtype in (torch.bfloat16, torch.float32):
        expected = reference.gather_records(pages.view(filled), slots, pages.record_format, dtype)
        made = kernels.gather_records(pages.view(there), slots.to(device), pages.record_format, dtype).cpu()
        assert torch.equal(made.isnan(), expected.isnan())
        assert same_bits(made.nan_to_num(nan=9.0), expected.nan_to_num(nan=9.0))
    expected_parts = reference.gather_parts(pages.view(filled), slots, pages.record_format)
    parts = kernels.gather_parts(pages.view(there), slots.to(device), pages.record_format)
    for made, wanted in zip(parts, expected_parts, strict=True):
        assert torch.equal(made.cpu(), wanted)


def angles(count: int, rope: int) -> tuple[Tensor, Tensor]:
    given = torch.rand(count, rope // 2, generator=torch.Generator().manual_seed(count)) * 1000
    return given.cos(), given.sin()


def test_what_kernels_cannot_take_is_named() -> None:
    view, rows, slots = torch.zeros(2, 4, 1, 66, dtype=torch.uint8), torch.zeros(2, 64), torch.tensor([0, 1])
    with pytest.raises(ConfigError, match=r"got view on cpu, slots on cpu, rows on cpu; one CUDA device is required"):
        kernels.store_records(view, slots, rows, MXFP8)
    with pytest.raises(ConfigError, match=r"refuse_nan is True; .* only False is accepted"):
        kernels.store_records(view, slots, rows, MXFP8, refuse_nan=True)
    with pytest.raises(ConfigError, match=r"rows have dtype torch.float64; bfloat16 or float32 is required"):
        kernels.store_records(view, slots, rows.double(), MXFP8)
    with pytest.raises(ConfigError, match=r"slots has dtype torch.int16; int32 or int64 is required"):
        kernels.store_records(view, slots.short(), rows, MXFP8)
    with pytest.raises(ConfigError, match=r"record_format is FLOAT64; kernels of sm90 are for"):
        kernels.store_records(view, slots, rows, RecordFormat.FLOAT64)
    with pytest.raises(ConfigError, match=r"rows have 544 elements; kernels of sm90 need a multiple of 16 up to 512"):
        kernels.store_records(torch.zeros(2, 4, 1, 561, dtype=torch.uint8), slots, torch.zeros(2, 544), MXFP8)
    with pytest.raises(ConfigError, match=r"view is torch.uint8 .* is needed"):
        kernels.gather_records(torch.zeros(2, 1, 8, 66, dtype=torch.uint8).transpose(1, 3), slots, MXFP8)
    with pytest.raises(ConfigError, match=r"cos has 4 columns; kernels of sm90 turn a multiple of 8 pairs"):
        kernels.norm_rope(rows, torch.zeros(64), EPS, torch.zeros(2, 4), torch.zeros(2, 4))


@pytest.mark.gpu
@pytest.mark.sm90
@pytest.mark.parametrize("pages", PAGES, ids=lambda pages: pages.label)
def test_records_are_stored_byte_by_byte_as_by_the_reference(pages: Pages, hopper: torch.device) -> None:
    for count in (0, 1, 2, 37, pages.entries * pages.num_pages):
        slots = distinct_slots(count, pages)
        rows = rows_of_every_magnitude(count, pages.width)
        check_store(pages, rows, slots, hopper)
    check_store(pages, rows.float() * 1.01, slots.long(), hopper)


@pytest.mark.gpu
@pytest.mark.sm90
@pytest.mark.parametrize("pages", PAGES[:3], ids=lambda pages: pages.label)
def test_every_bfloat16_is_encoded_as_by_the_reference(pages: Pages, hopper: torch.device) -> None:
    """Each of them beside a larger one that fixes the scale, and as the one that does."""
    bits = torch.arange(1 << 16, dtype=torch.int32)
    values = bits.to(torch.int16).view(torch.bfloat16)
    values = values[values.isfinite()]
    leaders = values.abs().float() * (1 + 7 * torch.rand(values.shape, generator=torch.Generator().manual_seed(1)))
    group = pages.record_format.group
    for leader in (values, leaders.clamp(max=3e38).bfloat16()):
        groups = torch.stack([leader, *[values.roll(step * 255) for step in range(group - 1)]], 1)
        groups[:, 1:] = torch.where(groups[:, 1:].abs() <= leader.abs()[:, None], groups[:, 1:], values[:, None])
        rows = groups.flatten()[: groups.numel() // pages.width * pages.width].view(-1, pages.width)
        many = Pages(pages.record_format, pages.width, pages.entries, -(-rows.shape[0] // pages.entries))
        check_store(many, rows, torch.arange(rows.shape[0], dtype=torch.int32), hopper)


@pytest.mark.gpu
@pytest.mark.sm90
@pytest.mark.parametrize("pages", PAGES, ids=lambda pages: pages.label)
def test_what_is_not_a_number_is_stored_as_0(pages: Pages, hopper: torch.device) -> None:
    rows = rows_of_every_magnitude(40, pages.width)
    rows[torch.rand(rows.shape, generator=torch.Generator().manual_seed(3)) < 0.05] = torch.nan
    check_store(pages, rows, distinct_slots(40, pages), hopper)
    if pages.record_format is FP4_MAIN:
        rows[:, ::11] = torch.inf
        rows[:, 5::13] = -torch.inf
        check_store(pages, rows, distinct_slots(40, pages), hopper)


@pytest.mark.gpu
@pytest.mark.sm90
@pytest.mark.parametrize("pages", PAGES, ids=lambda pages: pages.label)
def test_records_are_read_as_by_the_reference(pages: Pages, hopper: torch.device) -> None:
    stored = pages.make()
    capacity = pages.entries * pages.num_pages
    everything = torch.arange(capacity)
    reference.store_records(
        pages.view(stored), everything, rows_of_every_magnitude(capacity, pages.width), pages.record_format
    )
    generator = torch.Generator().manual_seed(2)
    noise = torch.randint(0, 256, stored.shape, dtype=torch.uint8, generator=generator)
    for filled in (stored, noise, torch.full_like(stored, 0xFF)):
        for slots in (distinct_slots(capacity, pages), everything[:1], everything[:0].int(), -torch.ones(3, 5).int()):
            check_gather(pages, filled, slots, hopper)


@pytest.mark.gpu
@pytest.mark.sm90
@pytest.mark.parametrize("pages", [*PAGES, Pages(MXFP8, 512, 5, 3, 1, 1)], ids=lambda pages: pages.label)
def test_the_bytes_of_many_records_are_read_as_by_the_reference(pages: Pages, hopper: torch.device) -> None:
    generator = torch.Generator().manual_seed(4)
    filled = torch.randint(0, 256, pages.make().shape, dtype=torch.uint8, generator=generator)
    slots = torch.randint(-1, pages.entries * pages.num_pages, (33_001,), generator=generator)
    parts = kernels.gather_parts(pages.view(filled.to(hopper)), slots.to(hopper), pages.record_format)
    for made, wanted in zip(parts, reference.gather_parts(pages.view(filled), slots, pages.record_format), strict=True):
        assert torch.equal(made.cpu(), wanted)


@pytest.mark.gpu
@pytest.mark.sm90
@pytest.mark.parametrize("pages", PAGES[:3], ids=lambda pages: pages.label)
def test_slots_beyond_the_view_store_nothing_and_read_zeros(pages: Pages, hopper: torch.device) -> None:
    capacity = pages.entries * pages.num_pages
    whole = pages.make().to(hopper)
    slots = torch.tensor([capacity, capacity + 5, -7, 2**31 - 1], dtype=torch.int32, device=hopper)
    rows = rows_of_every_magnitude(4, pages.width).to(hopper)
    kernels.store_records(pages.view(whole), slots, rows, pages.record_format)
    assert torch.equal(whole.cpu(), pages.make())
    assert not kernels.gather_records(pages.view(whole), slots, pages.record_format, torch.bfloat16).any()


@pytest.mark.gpu
@pytest.mark.sm90
@pytest.mark.parametrize("pages", PAGES, ids=lambda pages: pages.label)
def test_normed_and_rotated_rows_are_stored(pages: Pages, hopper: torch.device) -> None:
    rope = 64 if pages.width > 64 else 32
    for count in (0, 1, 63):
        for dtype, weight_dtype in ((torch.bfloat16, torch.float32), (torch.float32, torch.bfloat16)):
            wide = rows_of_every_magnitude(count, 3 * pages.width).to(dtype)
            x, slots = wide[:, pages.width : 2 * pages.width], distinct_slots(count, pages)
            weight = (torch.rand(pages.width, generator=torch.Generator().manual_seed(1)) + 0.5).to(weight_dtype)
            given = (x, weight, EPS, *angles(count, rope))
            there = [each.to(hopper) if isinstance(each, Tensor) else each for each in given]
            there[0] = wide.to(hopper)[:, pages.width : 2 * pages.width]
            pool = pages.make().to(hopper)
            normed = kernels.norm_rope_store(*there, pages.view(pool), slots.to(hopper), pages.record_format).cpu()
            assert normed.dtype == torch.bfloat16
            wanted = reference.rms_norm(x.bfloat16(), weight, EPS)
            assert relative_error(normed, wanted) <= 4e-3
            rotated = reference.apply_rope(normed, *given[3:])
            expected = pages.make()
            reference.store_records(pages.view(expected), slots, rotated, pages.record_format)
            assert torch.equal(pool.cpu(), expected)
            assert same_bits(kernels.norm_rope(*there).cpu(), rotated)


@pytest.mark.gpu
@pytest.mark.sm90
def test_pages_that_lie_more_than_2_to_31_bytes_apart_are_reached(hopper: torch.device) -> None:
    pool = torch.zeros(3, (1 << 31) + 1152, dtype=torch.uint8, device=hopper)
    view = pool[:, 288 : 288 + 64 * 288].view(3, 64, 1, 288)
    rows = rows_of_every_magnitude(3, 512)
    slots = torch.tensor([191, 64, 5], dtype=torch.int32)
    kernels.store_records(view, slots.to(hopper), rows.to(hopper), FP4_MAIN)
    small = torch.zeros(3, 64, 1, 288, dtype=torch.uint8)
    reference.store_records(small, slots, rows, FP4_MAIN)
    assert torch.equal(view.cpu(), small)
    made = kernels.gather_records(view, slots.to(hopper), FP4_MAIN, torch.bfloat16)
    assert same_bits(made.cpu(), reference.gather_records(small, slots, FP4_MAIN, torch.bfloat16))


@pytest.mark.gpu
@pytest.mark.sm90
def test_load_plans_are_followed(hopper: torch.device) -> None:
    pages = Pages(MXFP4_INDEX, 128, 128, 9, 96, 32)
    filled = torch.randint(0, 120, pages.make().shape, dtype=torch.uint8)
    segments = torch.tensor([[3, 5, 128, 0], [-1, 0, 40, 123], [4, 7, 7, 163], [0, 0, 17, 163], [8, 127, 128, 180]])
    for given in (segments, segments.int()):
        slots = kernels.segments_to_slots(given.to(hopper), 181, 128)
        assert same_bits(slots.cpu(), reference.segments_to_slots(given, 181, 128))
        view, there = pages.view(filled), pages.view(filled.to(hopper))
        rows = kernels.load_records(there, given.to(hopper), 181, MXFP4_INDEX, torch.bfloat16)
        assert same_bits(rows.cpu(), reference.load_records(view, given, 181, MXFP4_INDEX, torch.bfloat16))
        parts = kernels.load_parts(there, given.to(hopper), 181, MXFP4_INDEX)
        for made, wanted in zip(parts, reference.load_parts(view, given, 181, MXFP4_INDEX), strict=True):
            assert torch.equal(made.cpu(), wanted)
