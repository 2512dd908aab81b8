"""Index scores on Hopper against those of the reference, in both sizes of the model."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import pytest
import torch
from kernels_testing.indexer_rows import ascending_blocks, known, random_pages, random_queries
from kernels_testing.row_cases import integers
from torch import Tensor

from thalweg.interfaces import ConfigError
from thalweg.kernels import RecordFormat, SyncGuard, bind, cuda_sync_mode
from thalweg.kernels.reference import quant
from thalweg.kernels.sm90.indexer import ScoreShape
from thalweg.kernels.testing import relative_error

reference = bind("cpu")
kernels = bind("sm90")

TOLERANCE = 5e-4
"""Float32 sums in another order round to another bfloat16 now and then: one in some thousand, by 2^-8 of itself."""
SIZES = pytest.mark.parametrize(("heads", "dim"), [(32, 128), (8, 64)])
ROWS, SIZE = 21, 8


def on(device: torch.device, given: Sequence[Any]) -> list[Any]:
    return [part.to(device) if isinstance(part, Tensor) else part for part in given]


def strewn(view: Tensor, device: torch.device) -> Tensor:
    """Pages on a device, as far apart as here, all bits set between them."""
    there = torch.full((view.shape[0], view.stride(0)), 255, dtype=torch.uint8, device=device)
    pages = there.as_strided(view.shape, view.stride())
    pages.copy_(view)
    return pages


def check(op: str, device: torch.device, given: Sequence[Any], lengths: Tensor) -> None:
    """The op on the device against the reference; both get `given`, whose views are strewn out."""
    there = [strewn(part, device) if isinstance(part, Tensor) and part.dim() == 4 else part for part in given]
    got = getattr(kernels, op)(*on(device, there)).cpu()
    expected = getattr(reference, op)(*given)
    assert got.dtype == torch.bfloat16
    assert got.shape == expected.shape
    assert relative_error(known(got, lengths), known(expected, lengths)) < TOLERANCE


def lengths_up_to(width: int, seed: int = 0) -> Tensor:
    lengths = integers(0, width + 1, ROWS, seed=seed).int()
    lengths[:6] = torch.tensor([width, 0, 1, width - 1, min(64, width), min(65, width)])
    return lengths


@pytest.mark.gpu
@pytest.mark.sm90
@SIZES
@pytest.mark.parametrize("entries", [16, 64, 128])
@pytest.mark.parametrize("rows", [0, 1, ROWS])
def test_scores_of_pages_are_those_of_the_reference(
    heads: int, dim: int, entries: int, rows: int, hopper: torch.device
) -> None:
    cells, ids = 5, torch.arange(rows)
    pages, queries = random_pages(40, entries, dim, gap=48), random_queries(ROWS, heads, dim)[ids]
    tables, visible = integers(0, 40, ROWS, cells).int(), lengths_up_to(cells * entries)
    tables[torch.arange(cells) * entries >= visible[:, None]] = 10**6  # which no page is
    given = (*queries, pages.view, tables[:rows], visible[:rows])
    check("paged_indexer_scores", hopper, (*given, cells * entries), visible[:rows])
    blocks = ascending_blocks(visible, 7, SIZE)[:rows]
    lengths = reference.compact_lengths(blocks, visible[:rows], SIZE)
    check("paged_candidate_scores", hopper, (*given, blocks, SIZE), lengths)


@pytest.mark.gpu
@pytest.mark.sm90
@SIZES
@pytest.mark.parametrize("rows", [0, 1, ROWS])
def test_scores_of_rows_are_those_of_the_reference(heads: int, dim: int, rows: int, hopper: torch.device) -> None:
    width, ids = 333, torch.arange(rows)
    queries, lengths = random_queries(ROWS, heads, dim)[ids], lengths_up_to(width)
    begin = torch.tensor([0, 5, 6, 300]).repeat_interleave(6)[:ROWS].int()
    end = begin + lengths
    codes, scales = quant.quantize_mxfp4(torch.randn(633, dim, generator=torch.Generator().manual_seed(2)))
    given = (*queries, codes, scales, begin[:rows], end[:rows])
    check("indexer_scores_rows", hopper, (*given, width), lengths[:rows])
    blocks = ascending_blocks(lengths, 7, SIZE)[:rows]
    compact = reference.compact_lengths(blocks, lengths[:rows], SIZE)
    check("candidate_scores_rows", hopper, (*given, blocks, SIZE), compact)


@pytest.mark.gpu
@pytest.mark.sm90
@SIZES
def test_scales_of_any_size_are_applied(heads: int, dim: int, hopper: torch.device) -> None:
    """Groups of a query far from each other, and keys of all magnitudes."""
    queries, pages = random_queries(ROWS, heads, dim), random_pages(8, 64, dim)
    generator = torch.Generator().manual_seed(1)
    scales = torch.randint(90, 160, queries.scales.shape, generator=generator).to(torch.uint8)
    scales[::3] = queries.scales[::3]
    view = pages.view.clone()
    view.flatten(1)[:, 64 * dim // 2 :] = torch.randint(100, 150, (8, 64 * dim // 32), generator=generator).byte()
    tables, visible = integers(0, 8, ROWS, 3).int(), lengths_up_to(192)
    for row in range(ROWS):
        given = (queries.codes, scales, queries.head_weights)
        one = [part[row : row + 1] for part in given]
        check("paged_indexer_scores", hopper, (*one, view, tables[row : row + 1], visible[row : row + 1], 192),
              visible[row : row + 1])  # fmt: skip


@pytest.mark.gpu
@pytest.mark.sm90
def test_sums_of_a_group_are_exact(hopper: torch.device) -> None:
    """One head of weight 1 and the largest values: every product is one, and their sum is not rounded."""
    heads, dim = 8, 64
    q, q_scales = torch.zeros(1, heads, dim // 2, dtype=torch.uint8), torch.full((1, heads, 2), 127, dtype=torch.uint8)
    generator = torch.Generator().manual_seed(0)
    q[0, 0] = torch.randint(0, 8, (dim // 2, 2), generator=generator).mul(torch.tensor([1, 16])).sum(-1).byte()
    weights = torch.zeros(1, heads).bfloat16()
    weights[0, 0] = 1
    keys = torch.randint(0, 256, (4096, dim // 2), generator=generator, dtype=torch.uint8)
    keys[0], keys[1] = 0x77, q[0, 0]
    given = (q, q_scales, weights, keys, torch.full((4096, 2), 127).byte(), torch.tensor([0]).int())
    end = torch.tensor([4096]).int()
    got = kernels.indexer_scores_rows(*on(hopper, given), end.to(hopper), 4096).cpu()
    assert torch.equal(got, reference.indexer_scores_rows(*given, end, 4096))


@pytest.mark.gpu
@pytest.mark.sm90
def test_pages_and_rows_and_blocks_give_a_score_the_same_bits(hopper: torch.device) -> None:
    heads, dim, entries, cells = 32, 128, 64, 4
    pages, queries = random_pages(cells, entries, dim), on(hopper, random_queries(5, heads, dim)[torch.arange(5)])
    tables, visible = torch.arange(cells, dtype=torch.int32).expand(5, -1).contiguous(), torch.full((5,), 250).int()
    view = strewn(pages.view, hopper)
    whole = kernels.paged_indexer_scores(*queries, view, *on(hopper, (tables, visible)), 256)
    blocks = torch.arange(0, 32, 2, dtype=torch.int32).expand(5, -1).contiguous()
    some = kernels.paged_candidate_scores(*queries, view, *on(hopper, (tables, visible, blocks)), SIZE)
    column = torch.arange(16 * SIZE, device=hopper)
    assert torch.equal(
        some[:, : 15 * SIZE + 2], whole[:, column // SIZE * 2 * SIZE + column % SIZE][:, : 15 * SIZE + 2]
    )
    codes, scales = reference.gather_parts(pages.view, torch.arange(256), RecordFormat.MXFP4_INDEX)
    rows = (*on(hopper, (codes, scales)), torch.zeros_like(visible, device=hopper), visible.to(hopper))
    assert torch.equal(kernels.indexer_scores_rows(*queries, *rows, 256)[:, :250], whole[:, :250])


@pytest.mark.gpu
@pytest.mark.sm90
def test_graphs_of_scores_wait_for_nothing_and_follow_their_inputs(hopper: torch.device) -> None:
    pages, queries = random_pages(20, 64, 128), on(hopper, random_queries(6, 32, 128)[torch.arange(6)])
    tables, visible = integers(0, 20, 6, 4).int(), integers(0, 257, 6).int()
    given = (*queries, strewn(pages.view, hopper), *on(hopper, (tables, visible)), 256)
    kernels.paged_indexer_scores(*given)  # compiles: not while capturing
    graph = torch.cuda.CUDAGraph()
    with SyncGuard(*cuda_sync_mode()).forbid(), torch.cuda.graph(graph):
        captured = kernels.paged_indexer_scores(*given)
    for shift in range(2):
        for tensor in (*queries, given[4], given[5]):
            tensor.copy_(tensor.roll(shift, 0))
        graph.replay()
        expected = kernels.paged_indexer_scores(*given)
        assert torch.equal(known(captured, given[5]), known(expected, given[5]))


def test_sizes_that_no_kernel_serves_are_named() -> None:
    with pytest.raises(ConfigError, match="q has 12 index heads; a positive multiple of 8 is served"):
        ScoreShape(12, 128, 64, 0)
    with pytest.raises(ConfigError, match="q has index heads of 96 columns; 64 and 128 are served"):
        ScoreShape(8, 96, 64, 0)
    with pytest.raises(ConfigError, match="pages have 40 entries; a multiple of 16 is served"):
        ScoreShape(8, 64, 40, 0)
    with pytest.raises(ConfigError, match="block_size is 12; a multiple of 8 is served"):
        ScoreShape(8, 64, 64, 12)


def test_tensors_on_the_cpu_are_refused() -> None:
    pages, queries = random_pages(3, 16, 64), random_queries(2, 8, 64)[torch.arange(2)]
    with pytest.raises(ConfigError, match="q lies on cpu; a CUDA device is required"):
        kernels.paged_indexer_scores(*queries, pages.view, torch.zeros(2, 2).int(), torch.ones(2).int(), 32)
