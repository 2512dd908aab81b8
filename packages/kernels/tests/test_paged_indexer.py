"""Scores on stored bytes against those of the decoded values, and what they select."""

from __future__ import annotations

import pytest
import torch
from kernels_testing.indexer_rows import ascending_blocks, known, random_pages, random_queries
from kernels_testing.row_cases import integers
from torch import Tensor

from thalweg.interfaces import ConfigError
from thalweg.kernels import bind
from thalweg.kernels.reference import quant

ops = bind("cpu")
EVERY_SHAPE = pytest.mark.parametrize(("heads", "dim", "entries"), [(8, 64, 16), (32, 128, 64)])
PAGES, ROWS, CELLS, SIZE = 30, 9, 5, 8


def paged_keys(keys: Tensor, tables: Tensor) -> Tensor:
    """float32 [T, w * entries, d] of every row by itself."""
    return keys[tables.long()].flatten(1, 2)


def plain_scores(queries: Tensor, weights: Tensor, keys: Tensor) -> Tensor:
    """bfloat16 [n, m] from queries [n, G, d] and keys [n, m, d]."""
    products = torch.relu(torch.einsum("ngd,nmd->ngm", queries.double(), keys.double()))
    return torch.einsum("ng,ngm->nm", weights.double(), products).bfloat16()


def table_rows(cells: int, pages: int) -> Tensor:
    """Distinct tables; three rows of one sequence, then two whose cells behind the visible entries differ."""
    tables = torch.stack([torch.arange(pages).roll(7 * row)[:cells] for row in range(ROWS)]).int()
    tables[1:3], tables[4] = tables[0], tables[3]
    tables[4, 2:] = 10**6
    return tables


@EVERY_SHAPE
def test_paged_scores_are_those_of_the_decoded_records(heads: int, dim: int, entries: int) -> None:
    pages, queries, tables = (
        random_pages(PAGES, entries, dim),
        random_queries(ROWS, heads, dim),
        table_rows(CELLS, PAGES),
    )
    width = CELLS * entries
    visible = torch.tensor([0, 3, width, width - 1, 2 * entries, 1, entries, entries + 1, 17], dtype=torch.int32)
    scores = ops.paged_indexer_scores(*queries[torch.arange(ROWS)], pages.view, tables, visible, width + 3)
    assert scores.dtype == torch.bfloat16
    assert scores.shape == (ROWS, width + 3)
    expected = plain_scores(queries.values, queries.head_weights, paged_keys(pages.keys, tables.clamp(max=PAGES - 1)))
    got = known(scores, visible)[:, :width]
    assert torch.allclose(got.float(), known(expected, visible).float(), rtol=2**-7, atol=1e-4)


@EVERY_SHAPE
def test_a_selection_among_compact_scores_is_the_restricted_one(heads: int, dim: int, entries: int) -> None:
    pages, queries, tables = (
        random_pages(PAGES, entries, dim),
        random_queries(ROWS, heads, dim),
        table_rows(CELLS, PAGES),
    )
    visible = torch.tensor([0, 3, 80, 77, 2 * SIZE, 1, 60, 31, 17], dtype=torch.int32)
    blocks, given = ascending_blocks(visible, 6, SIZE), queries[torch.arange(ROWS)]
    dense = ops.paged_indexer_scores(*given, pages.view, tables, visible, 80)
    compact = ops.paged_candidate_scores(*given, pages.view, tables, visible, blocks, SIZE)
    assert compact.shape == (ROWS, 6 * SIZE)
    lengths = ops.compact_lengths(blocks, visible, SIZE)
    picked = ops.restore_indices(ops.select_topk(compact, lengths, 12), blocks, SIZE)
    assert torch.equal(picked, ops.select_topk(ops.restrict_to_blocks(dense, blocks, SIZE), visible, 12))


@EVERY_SHAPE
def test_scores_of_rows_are_those_of_the_decoded_rows(heads: int, dim: int, entries: int) -> None:
    codes, scales = quant.quantize_mxfp4(torch.randn(200, dim, generator=torch.Generator().manual_seed(0)))
    keys, queries = quant.dequantize_mxfp4(codes, scales), random_queries(ROWS, heads, dim)
    begin = torch.tensor([0, 0, 0, 60, 60, 60, 130, 130, 199], dtype=torch.int32)
    end = torch.tensor([0, 1, 60, 61, 130, 100, 199, 131, 200], dtype=torch.int32)
    given = (*queries[torch.arange(ROWS)], codes, scales, begin, end)
    scores = ops.indexer_scores_rows(*given, 75)
    expected = ops.indexer_scores(queries.values, queries.head_weights.float(), keys, begin, end).bfloat16()
    assert torch.equal(known(scores, end - begin)[:, :70], known(expected, end - begin))

    blocks = ascending_blocks(end - begin, 4, SIZE)
    compact, lengths = ops.candidate_scores_rows(*given, blocks, SIZE), ops.compact_lengths(blocks, end - begin, SIZE)
    column = torch.arange(4 * SIZE).expand(ROWS, -1)
    entry = ops.restore_indices(column, blocks, SIZE).clamp(min=0).long()
    assert torch.equal(known(compact, lengths), known(scores.gather(1, entry), lengths))


def test_no_rows_have_no_scores_and_rows_may_see_nothing() -> None:
    pages, queries, none = random_pages(3, 16, 64), random_queries(2, 8, 64), torch.zeros(0, dtype=torch.int64)
    tables, zeros, blocks = torch.zeros(2, 4).int(), torch.zeros(2).int(), torch.full((2, 3), -1).int()
    codes, scales = quant.quantize_mxfp4(torch.zeros(0, 64))
    for ids in (none, torch.arange(2)):
        given, own = queries[ids], (tables[ids], zeros[ids])
        ends = (zeros[ids], zeros[ids])
        assert ops.paged_indexer_scores(*given, pages.view, *own, 20).shape == (len(ids), 20)
        assert ops.paged_candidate_scores(*given, pages.view, *own, blocks[ids], SIZE).shape == (len(ids), 24)
        assert ops.indexer_scores_rows(*given, codes, scales, *ends, 20).shape == (len(ids), 20)
        assert ops.candidate_scores_rows(*given, codes, scales, *ends, blocks[ids], SIZE).shape == (len(ids), 24)


def test_bad_arguments_are_refused_by_name() -> None:
    pages, queries = random_pages(3, 16, 64), random_queries(2, 8, 64)
    tables, visible = integers(0, 3, 2, 2).int(), torch.tensor([32, 5]).int()
    q, q_scales, weights = queries[torch.arange(2)]
    with pytest.raises(ConfigError, match=r"q_scales has shape \[2, 8, 1\]; \[2, 8, 2\] is expected"):
        ops.paged_indexer_scores(q, q_scales[:, :, :1], weights, pages.view, tables, visible, 32)
    with pytest.raises(ConfigError, match=r"head_weights has dtype torch.float32; torch.bfloat16 is required"):
        ops.paged_indexer_scores(q, q_scales, weights.float(), pages.view, tables, visible, 32)
    with pytest.raises(ConfigError, match=r"view is torch.uint8 \[3, 16, 1, 34\]; .* 1, 68\] is expected with .* 128"):
        ops.paged_indexer_scores(q.repeat(1, 1, 2), q_scales.repeat(1, 1, 2), weights, pages.view, tables, visible, 32)
    with pytest.raises(ConfigError, match=r"view has strides .*; pages must be contiguous inside"):
        ops.paged_indexer_scores(q, q_scales, weights, pages.view[:, ::2], tables, visible, 32)
    with pytest.raises(ConfigError, match=r"visible reaches 32; there is room for 31 entries"):
        ops.paged_indexer_scores(q, q_scales, weights, pages.view, tables, visible, 31)
    with pytest.raises(ConfigError, match="width is -1; an integer from 0 to 2147483647 is accepted"):
        ops.paged_indexer_scores(q, q_scales, weights, pages.view, tables, visible, -1)
    with pytest.raises(ConfigError, match="block_size is 0; an integer from 1 to"):
        ops.paged_candidate_scores(q, q_scales, weights, pages.view, tables, visible, tables, 0)
    keys, scales = quant.quantize_mxfp4(torch.ones(40, 64))
    with pytest.raises(ConfigError, match=r"key_scales has shape \[40, 1\]; \[40, 2\] is expected"):
        ops.indexer_scores_rows(q, q_scales, weights, keys, scales[:, :1], visible - 5, visible, 32)
    with pytest.raises(ConfigError, match=r"end - begin reaches 5; there is room for 4 entries"):
        ops.indexer_scores_rows(q, q_scales, weights, keys, scales, visible - 5, visible, 4)
