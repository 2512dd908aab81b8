"""Attention over cached records against attention over decoded keys, and its corner cases."""

from __future__ import annotations

import pytest
import torch
from kernels_testing.paged_attention import decoded_keys, paged_case

from thalweg.interfaces import ConfigError
from thalweg.kernels import RecordFormat
from thalweg.kernels.reference.attention import sparse_attention
from thalweg.kernels.reference.paged_attention import paged_sparse_attention
from thalweg.kernels.testing import relative_error

FORMATS = (RecordFormat.FP4_MAIN, RecordFormat.MXFP8)


@pytest.mark.parametrize("main_format", FORMATS, ids=lambda item: item.name)
@pytest.mark.parametrize(("heads", "dim", "widths"), [(8, 64, (64, 64)), (4, 512, (20, 33)), (8, 64, (64, None))])
@pytest.mark.parametrize("shared", [1, 3])
def test_it_equals_attention_over_decoded_keys(
    main_format: RecordFormat, heads: int, dim: int, widths: tuple[int, int | None], shared: int
) -> None:
    case = paged_case(5, shared, heads, dim, widths, main_format, dtype=torch.float64)
    keys, indices = decoded_keys(case)
    expected = sparse_attention(case.q, keys.double(), indices, case.sink.double(), case.scale)
    assert relative_error(paged_sparse_attention(*case), expected) < 1e-14


def test_bfloat16_is_computed_in_float32_and_rounded_once() -> None:
    case = paged_case()
    wide = paged_sparse_attention(*case._replace(q=case.q.float()))
    assert torch.equal(paged_sparse_attention(*case), wide.bfloat16())


def test_slots_outside_their_view_are_no_keys() -> None:
    case = paged_case(missing=0.5)
    assert case.main_slots is not None
    assert case.main_view is not None
    shifted = torch.where(case.main_slots < 0, case.main_view.shape[0] * case.main_view.shape[1], case.main_slots)
    window = torch.where(case.window_slots < 0, -7, case.window_slots).long()
    outside = paged_sparse_attention(*case._replace(window_slots=window, main_slots=shifted))
    assert torch.equal(outside, paged_sparse_attention(*case))


def test_a_row_without_keys_is_zero_and_no_rows_give_none() -> None:
    case = paged_case(num_lists=3, shared=2)
    assert case.main_slots is not None
    case.window_slots[1] = -1
    case.main_slots[1] = -1
    out = paged_sparse_attention(*case)
    assert bool((out[2:4] == 0).all())
    assert bool((out[[0, 1, 4, 5]] != 0).any(-1).all())
    none = torch.zeros(0, dtype=torch.int64)
    assert paged_sparse_attention(*case.rows(none)).shape == (0, 8, 64)


def test_records_that_no_list_names_never_matter() -> None:
    case = paged_case()
    expected = paged_sparse_attention(*case)
    assert case.main_slots is not None
    assert case.main_view is not None
    for view, slots in ((case.window_view, case.window_slots), (case.main_view, case.main_slots)):
        records = view.shape[0] * view.shape[1]
        unused = sorted(set(range(records)) - set(slots.flatten().tolist()))
        assert unused
        for slot in unused:
            view[slot // view.shape[1], slot % view.shape[1]] = 0x7F
    assert torch.equal(paged_sparse_attention(*case), expected)


def test_bad_arguments_are_refused_by_name() -> None:
    case = paged_case()
    bad = {
        r"q has shape \[48, 64\]; \[n, H, D\] is expected": {"q": case.q.flatten(0, 1)},
        r"sink has shape \[1\]; \[8\] is expected": {"sink": case.sink[:1]},
        r"window_slots has 4 lists for 6 rows of q; a divisor of 6": {"window_slots": case.window_slots[:4]},
        r"window_slots has dtype torch.float32; int32 or int64": {"window_slots": case.window_slots.float()},
        r"main_slots is None; main_view and main_slots come together": {"main_slots": None},
        r"main_view has shape \[7, 32, 1, 36\]; \[pages, entries, 1, 66\]": {"main_format": RecordFormat.MXFP8},
        r"main_format is FLOAT64; FP4_MAIN and MXFP8 are accepted": {"main_format": RecordFormat.FLOAT64},
        r"window_view is torch.int8 with strides": {"window_view": case.window_view.view(torch.int8)},
    }
    for message, changed in bad.items():
        with pytest.raises(ConfigError, match=message):
            paged_sparse_attention(*case._replace(**changed))  # type: ignore[arg-type]
