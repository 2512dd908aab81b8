"""Records in pages: recorded stores and loads, untouched bytes, layouts of any stride, and what must be refused."""

from __future__ import annotations

from pathlib import Path

import numpy as np
import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st

from thalweg.interfaces import ConfigError
from thalweg.kernels.reference import cache
from thalweg.kernels.reference.record_format import RecordFormat, identify_format

GOLDEN = Path(__file__).parent / "golden" / "cache"
CANARY = 0xA5
PAGES = [
    ("page_fp4_main", RecordFormat.FP4_MAIN, 512),
    ("page_mxfp8_swa", RecordFormat.MXFP8, 512),
    ("page_mxfp4_index", RecordFormat.MXFP4_INDEX, 128),
]
QUANTISED = [RecordFormat.FP4_MAIN, RecordFormat.MXFP8, RecordFormat.MXFP4_INDEX]


def load(name: str) -> dict[str, torch.Tensor]:
    with np.load(GOLDEN / f"{name}.npz") as archive:
        return {key: torch.from_numpy(archive[key]) for key in archive.files}


def from_bits(bits: torch.Tensor) -> torch.Tensor:
    return bits.view(torch.int16).view(torch.bfloat16)


def make_view(
    pages: torch.Tensor, entries: int, record_format: RecordFormat, width: int, offset: int = 0
) -> torch.Tensor:
    """The view of one layer that starts `offset` bytes into every page."""
    record = record_format.record_bytes(width)
    return pages[:, offset : offset + entries * record].view(pages.shape[0], entries, 1, record)


@pytest.mark.parametrize(("name", "record_format", "width"), PAGES)
def test_storing_writes_the_recorded_bytes_and_no_others(name: str, record_format: RecordFormat, width: int) -> None:
    data = load(name)
    entries = int(data["tpb"])
    pages = torch.full(tuple(data["pages_after_store"].shape), CANARY, dtype=torch.uint8)
    view = make_view(pages, entries, record_format, width)
    cache.store_records(view, data["slots"], from_bits(data["x_bf16_bits"]), record_format)
    assert torch.equal(pages, data["pages_after_store"])

    full = torch.zeros_like(data["full_pages"])
    rows = from_bits(data["full_x_bf16_bits"])
    slots = torch.arange(rows.shape[0], dtype=torch.int32)
    cache.store_records(make_view(full, entries, record_format, width), slots, rows.double(), record_format)
    assert torch.equal(full, data["full_pages"])


@pytest.mark.parametrize(("name", "record_format", "width"), PAGES)
def test_loading_by_segments_returns_the_recorded_rows(name: str, record_format: RecordFormat, width: int) -> None:
    data = load(name)
    view = make_view(data["full_pages"], int(data["tpb"]), record_format, width)
    total = int(data["total_k"])
    if record_format.is_block_split:
        elements, scales = cache.load_parts(view, data["segments"], total, record_format)
        assert torch.equal(elements, data["loaded_data"])
        assert torch.equal(scales, data["loaded_scale"])
        return
    rows = cache.load_records(view, data["segments"], total, record_format, torch.bfloat16)
    assert torch.equal(rows.view(torch.int16), data["loaded_bf16_bits"].view(torch.int16))
    wide = cache.load_records(view, data["segments"], total, record_format, torch.float64)
    assert wide.dtype == torch.float64
    assert torch.equal(wide, rows.double())


@pytest.mark.parametrize("record_format", list(RecordFormat))
@pytest.mark.parametrize("width", [32, 64, 512])
@settings(max_examples=15, deadline=None)
@given(data=st.data())
def test_stored_rows_come_back_wherever_the_pages_lie(
    record_format: RecordFormat, width: int, data: st.DataObject
) -> None:
    num_pages, entries = data.draw(st.integers(1, 4)), data.draw(st.integers(1, 9))
    gap, offset = data.draw(st.integers(0, 5)) * 32, data.draw(st.integers(0, 3)) * 8
    record = record_format.record_bytes(width)
    pages = torch.full((num_pages, entries * record + offset + gap), CANARY, dtype=torch.uint8)
    view = make_view(pages, entries, record_format, width, offset)
    capacity = num_pages * entries
    chosen = data.draw(st.permutations(range(capacity)))[: data.draw(st.integers(0, capacity))]
    slots = torch.tensor([slot if data.draw(st.booleans()) else -1 for slot in chosen], dtype=torch.int32)
    rows = torch.randn(len(chosen), width, generator=torch.Generator().manual_seed(len(chosen))).bfloat16().double()
    cache.store_records(view, slots, rows, record_format)

    written = torch.zeros(num_pages, entries, dtype=torch.bool)
    written.view(-1)[slots[slots >= 0].long()] = True
    sizes = (record_format.data_bytes(width), record_format.scale_bytes(width))
    mask = torch.zeros_like(pages, dtype=torch.bool)
    inner = mask[:, offset : offset + entries * record]
    if record_format.is_block_split:
        inner[:, : entries * sizes[0]] = written.repeat_interleave(sizes[0], dim=1)
        inner[:, entries * sizes[0] :] = written.repeat_interleave(sizes[1], dim=1)
    else:
        inner[:] = written.repeat_interleave(record, dim=1)
    assert bool((pages[~mask] == CANARY).all())

    got = cache.gather_records(view, slots, record_format, torch.float64)
    lone = torch.zeros(max(len(chosen), 1), 1, 1, record, dtype=torch.uint8)
    cache.store_records(lone, torch.arange(len(chosen)), rows, record_format)
    want = cache.gather_records(lone, torch.arange(len(chosen)), record_format, torch.float64)
    assert torch.equal(got[slots >= 0], want[slots >= 0])
    assert not got[slots < 0].any()
    if record_format is RecordFormat.FLOAT64:
        assert torch.equal(want, rows)


@pytest.mark.parametrize("record_format", QUANTISED)
def test_slot_zero_is_an_ordinary_slot_and_minus_one_is_none(record_format: RecordFormat) -> None:
    pages = torch.full((2, 3 * record_format.record_bytes(64)), 0xFF, dtype=torch.uint8)
    view = make_view(pages, 3, record_format, 64)
    cache.store_records(view, torch.tensor([-1, 0]), torch.full((2, 64), 6.0), record_format)
    rows = cache.gather_records(view, torch.tensor([[0, -1], [1, 0]]), record_format)
    assert torch.equal(rows[0, 0], torch.full((64,), 6.0))
    assert torch.equal(rows[1, 1], torch.full((64,), 6.0))
    assert not rows[0, 1].any()
    assert not rows[1, 0].isfinite().any()
    assert pages[1].unique().tolist() == [0xFF]


def test_zero_rows_ignore_what_a_poisoned_page_zero_holds() -> None:
    view = torch.full((1, 2, 1, 66), 0xFF, dtype=torch.uint8)
    rows = cache.load_records(view, torch.tensor([[-1, 0, 3, 0]]), 3, RecordFormat.MXFP8)
    assert rows.tolist() == torch.zeros(3, 64).tolist()


@pytest.mark.parametrize("record_format", QUANTISED)
def test_nan_is_written_as_zero_or_refused_on_demand(record_format: RecordFormat) -> None:
    rows = torch.randn(2, 64)
    rows[1, 5] = torch.nan
    clean = rows.nan_to_num(nan=0.0)
    views = [torch.zeros(1, 2, 1, record_format.record_bytes(64), dtype=torch.uint8) for _ in range(2)]
    for view, content in zip(views, (rows, clean), strict=True):
        cache.store_records(view, torch.tensor([0, 1]), content, record_format)
    assert torch.equal(views[0], views[1])
    with pytest.raises(ConfigError, match="1 NaN"):
        cache.store_records(views[0], torch.tensor([0, 1]), rows, record_format, refuse_nan=True)
    cache.store_records(views[0], torch.tensor([0, -1]), rows, record_format, refuse_nan=True)


def test_no_slots_of_no_pages_have_no_rows() -> None:
    view, none = torch.zeros(0, 3, 1, 66, dtype=torch.uint8), torch.zeros(0, dtype=torch.int32)
    cache.store_records(view, none, torch.zeros(0, 64), RecordFormat.MXFP8)
    assert cache.gather_records(view, none, RecordFormat.MXFP8).shape == (0, 64)


def test_views_whose_entries_lie_apart_are_read_and_written() -> None:
    pages = torch.full((2, 3, 100), CANARY, dtype=torch.uint8)
    view, rows = pages[:, :, None, 20:86], torch.randn(2, 64)
    cache.store_records(view, torch.tensor([4, 1]), rows, RecordFormat.MXFP8)
    packed = torch.zeros(2, 3, 1, 66, dtype=torch.uint8)
    cache.store_records(packed, torch.tensor([4, 1]), rows, RecordFormat.MXFP8)
    slots = torch.tensor([1, 4])
    got = cache.gather_records(view, slots, RecordFormat.MXFP8)
    assert torch.equal(got, cache.gather_records(packed, slots, RecordFormat.MXFP8))
    assert int((pages != CANARY).any(-1).sum()) == 2


def test_plain_records_keep_every_bit_of_a_row() -> None:
    rows = torch.randn(3, 32, dtype=torch.float64)
    rows[1, 0] = torch.nan
    view = torch.zeros(2, 2, 1, 256, dtype=torch.uint8)
    cache.store_records(view, torch.tensor([3, 0, 1]), rows, RecordFormat.FLOAT64)
    got = cache.gather_records(view, torch.tensor([3, 0, 1]), RecordFormat.FLOAT64, torch.float64)
    assert torch.equal(got.view(torch.int64), rows.view(torch.int64))


def test_the_named_stores_are_the_formats_they_say() -> None:
    rows, slots = torch.randn(2, 64), torch.tensor([1, 0])
    for store, record_format in [
        (cache.store_mxfp8, RecordFormat.MXFP8),
        (cache.store_fp4_e4m3, RecordFormat.FP4_MAIN),
        (cache.store_mxfp4_index, RecordFormat.MXFP4_INDEX),
    ]:
        views = [torch.zeros(1, 2, 1, record_format.record_bytes(64), dtype=torch.uint8) for _ in range(2)]
        store(views[0], slots, rows)
        cache.store_records(views[1], slots, rows, record_format)
        assert torch.equal(views[0], views[1])


def test_record_sizes_are_those_of_the_released_model() -> None:
    assert RecordFormat.FP4_MAIN.record_bytes(512) == 288
    assert RecordFormat.MXFP8.record_bytes(512) == 528
    assert RecordFormat.MXFP4_INDEX.record_bytes(128) == 68
    assert RecordFormat.FLOAT64.record_bytes(64) == 512
    for record_format in RecordFormat:
        for width in range(32, 1024, 32):
            record = record_format.record_bytes(width)
            assert record_format.width(record) == width
            assert identify_format(record, width) is record_format


def test_a_record_size_names_its_format_only_when_it_is_unique() -> None:
    assert identify_format(288) is RecordFormat.FP4_MAIN
    assert identify_format(528) is RecordFormat.MXFP8
    assert identify_format(68) is RecordFormat.MXFP4_INDEX
    for record in (132, 584, 592, 66, 0):
        with pytest.raises(ConfigError, match=f"record of {record} bytes"):
            identify_format(record)
    with pytest.raises(ConfigError, match="at width 512"):
        identify_format(584, 512)


def plain_view() -> torch.Tensor:
    return torch.zeros(2, 3, 1, 66, dtype=torch.uint8)


@pytest.mark.parametrize(
    ("call", "message"),
    [
        (lambda: cache.store_mxfp8(plain_view(), torch.tensor([6]), torch.zeros(1, 64)), "slot 6 is outside"),
        (lambda: cache.store_mxfp8(plain_view(), torch.tensor([-2]), torch.zeros(1, 64)), "slot -2 is outside"),
        (lambda: cache.store_mxfp8(plain_view(), torch.tensor([0]), torch.zeros(1, 32)), r"rows has shape \[1, 32\]"),
        (
            lambda: cache.store_mxfp8(plain_view(), torch.tensor([0, 1]), torch.zeros(1, 64)),
            r"rows has shape \[1, 64\]; \[2, 64\] is expected",
        ),
        (lambda: cache.store_fp4_e4m3(plain_view(), torch.tensor([0]), torch.zeros(1, 64)), "no FP4_MAIN record"),
        (lambda: cache.store_mxfp8(plain_view()[0], torch.tensor([0]), torch.zeros(1, 64)), "view is torch.uint8"),
        (lambda: cache.store_mxfp8(plain_view().float(), torch.tensor([0]), torch.zeros(1, 64)), "view is torch.float"),
        (
            lambda: cache.store_mxfp4_index(
                torch.zeros(2, 3, 1, 68, dtype=torch.uint8)[..., :34], torch.tensor([0]), torch.zeros(1, 64)
            ),
            "must be contiguous inside",
        ),
        (lambda: cache.gather_records(plain_view(), torch.tensor([6]), RecordFormat.MXFP8), "slot 6 is outside"),
        (lambda: cache.segments_to_slots(torch.tensor([[0, 0, 2, 1]]), 2, 3), "fill rows 0..1 in order"),
        (lambda: cache.segments_to_slots(torch.tensor([[0, 0, 2, 0]]), 3, 3), "they give 2 rows"),
        (lambda: cache.segments_to_slots(torch.tensor([[0, 2, 4, 0]]), 2, 3), "outside its page of 3"),
        (lambda: cache.segments_to_slots(torch.tensor([0, 2, 4, 0]), 2, 3), r"\[m, 4\] is expected"),
        (lambda: RecordFormat.MXFP8.record_bytes(48), "multiple of 32"),
        (lambda: RecordFormat.FP4_MAIN.record_bytes(0), "multiple of 16"),
    ],
)
def test_bad_input_of_stores_and_loads_is_named(call: object, message: str) -> None:
    with pytest.raises(ConfigError, match=message):
        call()  # type: ignore[operator]
