"""Attention on Hopper, over cached records and over a table, against the reference in float64."""

from __future__ import annotations

from collections.abc import Callable

import pytest
import torch
from kernels_testing.paged_attention import PagedCase, decoded_keys, paged_case
from kernels_testing.row_cases import integers, random
from torch import Tensor

from thalweg.interfaces import ConfigError
from thalweg.kernels import RecordFormat, SyncGuard, bind, cuda_sync_mode, default_registry
from thalweg.kernels.reference import attention
from thalweg.kernels.testing import RowCall, broken_promises, relative_error, same_bits

paged = bind("sm90").paged_sparse_attention
sparse = bind("sm90").sparse_attention

TOLERANCE = 4e-3
"""Masses and the output are rounded to bfloat16, each of which costs about 1.7e-3 of the norm."""
FP4, MXFP8 = RecordFormat.FP4_MAIN, RecordFormat.MXFP8
REAL, SMALL = (64, 512, (128, 512)), (8, 64, (64, 64))


def expected(case: PagedCase) -> Tensor:
    keys, indices = decoded_keys(case)
    return attention.sparse_attention(case.q.double(), keys.double(), indices, case.sink.double(), case.scale)


def on(device: torch.device, make: Callable[[], PagedCase]) -> PagedCase:
    with torch.device(device):
        return make()


def table_case(
    rows: int, heads: int, dim: int, width: int, num_keys: int = 300, dtype: torch.dtype = torch.int32
) -> tuple[Tensor, ...]:
    """q, keys, indices, some of them -1 or beyond the table, and sink."""
    q, keys = random(rows, heads, dim, dtype=torch.bfloat16), random(num_keys, dim, dtype=torch.bfloat16, seed=1)
    indices = integers(-60, num_keys + 40, rows, width, seed=2).to(dtype)
    return q, keys, indices, random(heads, dtype=torch.float32)


def test_arguments_that_the_kernels_cannot_take_are_named() -> None:
    case = paged_case()
    for message, changed in {
        r"q has dtype torch.float32; bfloat16 is required": {"q": case.q.float()},
        r"q has 72 heads; at most 64": {"q": case.q.repeat(1, 9, 1), "sink": case.sink.repeat(9)},
        r"window_slots has 0 columns; at least 1 is required": {"window_slots": case.window_slots[:, :0]},
        r"scale is 0.0; a positive number is required": {"scale": 0.0},
        r"lists have 1600 \+ 64 slots; at most 1536 in all": {"window_slots": case.window_slots.repeat(1, 25)},
        r"q on cpu, .* one CUDA device is required": {},
    }.items():
        with pytest.raises(ConfigError, match=message):
            paged(*case._replace(**changed))  # type: ignore[arg-type]
    narrow = paged_case(dim=32)
    with pytest.raises(ConfigError, match=r"q has heads of 32 columns; 64, 128, ... 512 are accepted"):
        paged(*narrow)
    q, keys, indices, sink = table_case(3, 8, 64, 10)
    with pytest.raises(ConfigError, match=r"q has shape \[3, 64\]; \[n, H, D\] is expected"):
        sparse(q[:, 0], keys, indices, sink, 0.125)
    with pytest.raises(ConfigError, match=r"keys have dtype torch.float32; q has torch.bfloat16"):
        sparse(q, keys.float(), indices, sink, 0.125)
    with pytest.raises(ConfigError, match=r"indices has dtype torch.float32; int32 or int64 is required"):
        sparse(q, keys, indices.float(), sink, 0.125)
    with pytest.raises(ConfigError, match=r"one CUDA device is required"):
        sparse(q, keys, indices, sink, 0.125)


def test_no_rows_need_no_device() -> None:
    assert paged(*paged_case().rows(torch.zeros(0, dtype=torch.int64))).shape == (0, 8, 64)
    q, keys, indices, sink = table_case(3, 8, 64, 10)
    assert sparse(q[:0], keys, indices[:0], sink, 0.125).shape == (0, 8, 64)
    assert bool((sparse(q, keys[:0], indices, sink, 0.125) == 0).all())


@pytest.mark.gpu
@pytest.mark.sm90
@pytest.mark.parametrize("main_format", [FP4, MXFP8], ids=lambda item: item.name)
@pytest.mark.parametrize("missing", [0.0, 0.3, 0.97])
@pytest.mark.parametrize("shared", [1, 3])
@pytest.mark.parametrize("size", [REAL, SMALL, (64, 512, (128, None)), (8, 64, (64, None))], ids=str)
def test_it_equals_the_reference_over_cached_records(
    size: tuple[int, int, tuple[int, int | None]],
    shared: int,
    missing: float,
    main_format: RecordFormat,
    hopper: torch.device,
) -> None:
    heads, dim, widths = size
    case = on(hopper, lambda: paged_case(7, shared, heads, dim, widths, main_format, missing=missing))
    assert relative_error(paged(*case), expected(case)) < TOLERANCE


@pytest.mark.gpu
@pytest.mark.sm90
def test_rows_without_keys_are_zero_and_others_do_not_notice(hopper: torch.device) -> None:
    case = on(hopper, lambda: paged_case(6, 2, *REAL))
    assert case.main_slots is not None
    whole = paged(*case)
    window, main = case.window_slots.clone(), case.main_slots.clone()
    window[[0, 4]] = -1
    main[[0, 4]] = -1
    out = paged(*case._replace(window_slots=window, main_slots=main)).view(6, 2, 64, 512)
    assert bool((out[[0, 4]] == 0).all())
    assert torch.equal(out[[1, 2, 3, 5]], whole.view(6, 2, 64, 512)[[1, 2, 3, 5]])


@pytest.mark.gpu
@pytest.mark.sm90
@pytest.mark.parametrize("size", [REAL, SMALL], ids=str)
def test_records_that_no_list_names_and_slots_outside_never_matter(
    size: tuple[int, int, tuple[int, int]], hopper: torch.device
) -> None:
    case = on(hopper, lambda: paged_case(2, 1, *size, missing=0.8))
    whole = paged(*case)
    assert case.main_slots is not None
    assert case.main_view is not None
    for view, slots in ((case.window_view, case.window_slots), (case.main_view, case.main_slots)):
        named = set(slots.flatten().tolist())
        for slot in set(range(view.shape[0] * view.shape[1])) - named:
            view[slot // view.shape[1], slot % view.shape[1]] = 0xFF
        slots[slots < 0] = 2**31 - 1
        slots[:, ::2][slots[:, ::2] == 2**31 - 1] = view.shape[0] * view.shape[1]
    assert same_bits(paged(*case), whole)


@pytest.mark.gpu
@pytest.mark.sm90
def test_infinite_sinks_and_large_logits_give_numbers(hopper: torch.device) -> None:
    case = on(hopper, lambda: paged_case(3, 1, *SMALL))
    sink = case.sink.clone()
    sink[0], sink[1], sink[2] = -torch.inf, torch.inf, 3e4
    case = case._replace(q=case.q * 1000, sink=sink)
    out = paged(*case)
    assert bool(torch.isfinite(out).all())
    assert bool((out[:, 1] == 0).all())
    assert relative_error(out, expected(case)) < TOLERANCE


@pytest.mark.gpu
@pytest.mark.sm90
@pytest.mark.parametrize("amplitude", [1e-4, 30.0, 3e4])
def test_records_of_any_size_are_decoded(amplitude: float, hopper: torch.device) -> None:
    """The scales of small ones are subnormal."""
    from thalweg.kernels.reference.cache import store_records

    case = on(hopper, lambda: paged_case(4, 1, *REAL))
    assert case.main_view is not None
    for view, record_format in ((case.window_view, MXFP8), (case.main_view, FP4)):
        slots = torch.arange(view.shape[0] * view.shape[1], device=hopper)
        rows = amplitude * torch.randn(slots.shape[0], 512, device=hopper) ** 3
        store_records(view, slots, rows, record_format)
    case = case._replace(scale=case.scale / amplitude)
    assert relative_error(paged(*case), expected(case)) < TOLERANCE


@pytest.mark.gpu
@pytest.mark.sm90
@pytest.mark.parametrize("dtype", [torch.int32, torch.int64], ids=str)
@pytest.mark.parametrize("shape", [(9, 64, 512, 640), (5, 8, 64, 128), (3, 80, 192, 72)], ids=str)
def test_it_equals_the_reference_over_a_table(
    shape: tuple[int, int, int, int], dtype: torch.dtype, hopper: torch.device
) -> None:
    with torch.device(hopper):
        q, keys, indices, sink = table_case(*shape, dtype=dtype)
    indices[1] = -1
    wide = attention.sparse_attention(q.double(), keys.double(), indices, sink.double(), 0.05)
    out = sparse(q, keys, indices, sink, 0.05)
    assert relative_error(out, wide) < TOLERANCE
    assert bool((out[1] == 0).all())
    plain = attention.sparse_attention(q.double(), keys.double(), indices, None, 0.05)
    assert relative_error(sparse(q, keys, indices, None, 0.05), plain) < TOLERANCE


@pytest.mark.gpu
@pytest.mark.sm90
def test_a_large_table_and_many_rows_are_reached(hopper: torch.device) -> None:
    keys = torch.randn(4_500_000, 512, dtype=torch.bfloat16, device=hopper)
    q = torch.randn(3000, 64, 512, dtype=torch.bfloat16, device=hopper)
    indices = torch.randint(0, 4_500_000, (3000, 640), device=hopper)
    some = [0, 1500, 2999]
    wide = attention.sparse_attention(q[some].float(), keys.float(), indices[some], None, 0.05)
    assert relative_error(sparse(q, keys, indices, None, 0.05)[some], wide) < TOLERANCE


def rows_over_records() -> RowCall:
    case = paged_case(33, 2, *REAL)
    return lambda op, ids: op(*case.rows(ids)).view(ids.shape[0], 2, 64, 512)


def rows_over_a_table() -> RowCall:
    q, keys, indices, sink = table_case(33, *REAL[:2], 640)
    return lambda op, ids: op(q[ids], keys, indices[ids], sink, 0.05)


@pytest.mark.gpu
@pytest.mark.sm90
@pytest.mark.parametrize("make", [rows_over_records, rows_over_a_table])
def test_the_kernels_keep_what_they_declare(make: Callable[[], RowCall], hopper: torch.device) -> None:
    op = "paged_sparse_attention" if make is rows_over_records else "sparse_attention"
    (implementation,) = default_registry().implementations(op, "sm90")
    with torch.device(hopper):
        call = make()
    assert broken_promises(implementation, call, 33, (1, 2, 5, 16, 32), (1,), "cuda") == []


@pytest.mark.gpu
@pytest.mark.sm90
def test_a_graph_of_it_blocks_nothing_and_follows_its_inputs(hopper: torch.device) -> None:
    case, other = (on(hopper, lambda seed=seed: paged_case(5, 1, *REAL, seed=seed)) for seed in (0, 9))
    paged(*case)  # compiles: not while capturing
    graph = torch.cuda.CUDAGraph()
    with SyncGuard(*cuda_sync_mode()).forbid(), torch.cuda.graph(graph):
        out = paged(*case)
    assert case.main_slots is not None
    assert other.main_slots is not None
    for given, value in ((case.q, other.q), (case.window_slots, other.window_slots)):
        given.copy_(value)
    case.main_slots.copy_(other.main_slots)
    graph.replay()
    assert same_bits(out, paged(*case))
