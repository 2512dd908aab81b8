"""Rows of the indexer on stored bytes: queries with pages of keys, or with rows of them."""

from __future__ import annotations

from dataclasses import dataclass

import torch
from kernels_testing.row_cases import Op, integers, random, rows_of
from torch import Tensor

from thalweg.kernels import RecordFormat
from thalweg.kernels.reference import quant
from thalweg.kernels.reference.cache import store_records
from thalweg.kernels.reference.indexer import compact_lengths
from thalweg.kernels.testing import RowCall, Rows

QUERIES, WIDTH, SIZE = 20, 96, 8
COUNTS = (1, 2, 3, 5, 8, 16, 17)
DIMS = [(8, 64), (32, 128)]
"""Index heads, and columns of each."""


@dataclass(frozen=True)
class Pages:
    """Index pages [pages, entries, 1, record], apart from each other, with all bits set between them."""

    view: Tensor
    keys: Tensor
    """float32 [pages, entries, d], what the records decode to."""


def random_pages(pages: int, entries: int, dim: int, gap: int = 32, seed: int = 0) -> Pages:
    """Pages of normal keys, `gap` bytes apart."""
    record = RecordFormat.MXFP4_INDEX.record_bytes(dim)
    memory = torch.full((pages, entries * record + gap), 255, dtype=torch.uint8)
    view = memory[:, : entries * record].unflatten(1, (entries, 1, record))
    keys = random(pages, entries, dim, dtype=torch.float32, seed=seed)
    store_records(view, torch.arange(pages * entries), keys.flatten(0, 1), RecordFormat.MXFP4_INDEX)
    return Pages(view, quant.fake_mxfp4(keys))


@dataclass(frozen=True)
class Queries:
    """Queries as they are stored."""

    codes: Tensor
    scales: Tensor
    head_weights: Tensor
    values: Tensor
    """float32 [n, G, d], what the codes decode to."""

    def __getitem__(self, ids: Tensor) -> tuple[Tensor, Tensor, Tensor]:
        return self.codes[ids], self.scales[ids], self.head_weights[ids]


def random_queries(rows: int, heads: int, dim: int, seed: int = 1) -> Queries:
    """Normal queries and head weights."""
    queries = random(rows, heads, dim, dtype=torch.float32, seed=seed)
    codes, scales = quant.quantize_mxfp4(queries)
    return Queries(codes, scales, random(rows, heads, dtype=torch.bfloat16, seed=seed), quant.fake_mxfp4(queries))


def ascending_blocks(visible: Tensor, columns: int, size: int, seed: int = 2) -> Tensor:
    """int32 [n, columns]: some of the blocks that hold visible entries, ascending, -1 behind them."""
    count = (visible + size - 1) // size
    most = max(int(count.max()), columns)
    order = random(visible.shape[0], most, seed=seed)
    order = order.masked_fill(torch.arange(most) >= count[:, None], torch.inf)
    picked = order.argsort(-1)[:, :columns]
    picked = torch.where(order.gather(1, picked) < torch.inf, picked, most).sort(-1).values
    return torch.where(picked < most, picked, -1).int()


def known(scores: Tensor, lengths: Tensor) -> Tensor:
    """Scores with zeros in undefined columns."""
    return scores.masked_fill(torch.arange(scores.shape[1], device=scores.device) >= lengths[:, None], 0)


def paged(heads: int, dim: int) -> tuple[Queries, Tensor, Tensor, Tensor]:
    """Queries, a view, tables of pages of 16 entries, and visible entries; two rows are of one sequence."""
    view = random_pages(40, 16, dim).view
    tables = integers(0, 40, QUERIES, 6).int()
    tables[1::2] = tables[::2]
    visible = (integers(0, WIDTH + 1, QUERIES, seed=1)).int()
    return random_queries(QUERIES, heads, dim), view, tables, visible


@rows_of("paged_indexer_scores", num_rows=QUERIES, counts=COUNTS, shape=DIMS)
def paged_indexer_scores(shape: tuple[int, int]) -> RowCall:
    queries, view, tables, visible = paged(*shape)

    def call(op: Op, ids: Tensor) -> Rows:
        return known(op(*queries[ids], view, tables[ids], visible[ids], WIDTH), visible[ids])

    return call


@rows_of("paged_candidate_scores", num_rows=QUERIES, counts=COUNTS, shape=DIMS)
def paged_candidate_scores(shape: tuple[int, int]) -> RowCall:
    queries, view, tables, visible = paged(*shape)
    blocks = ascending_blocks(visible, 5, SIZE)

    def call(op: Op, ids: Tensor) -> Rows:
        scores = op(*queries[ids], view, tables[ids], visible[ids], blocks[ids], SIZE)
        return known(scores, compact_lengths(blocks[ids], visible[ids], SIZE))

    return call


def rows_with_keys(heads: int, dim: int) -> tuple[Queries, Tensor, Tensor, Tensor, Tensor]:
    """Queries, packed keys, their scales, and the range of each query, some of which are empty."""
    codes, scales = quant.quantize_mxfp4(random(300, dim, dtype=torch.float32, seed=3))
    begin = (integers(0, 4, QUERIES, seed=4) * 50).int()
    end = (begin + integers(0, WIDTH + 1, QUERIES, seed=5)).int()
    return random_queries(QUERIES, heads, dim), codes, scales, begin, end


@rows_of("indexer_scores_rows", num_rows=QUERIES, counts=COUNTS, shape=DIMS)
def indexer_scores_rows(shape: tuple[int, int]) -> RowCall:
    queries, keys, scales, begin, end = rows_with_keys(*shape)

    def call(op: Op, ids: Tensor) -> Rows:
        return known(op(*queries[ids], keys, scales, begin[ids], end[ids], WIDTH), (end - begin)[ids])

    return call


@rows_of("candidate_scores_rows", num_rows=QUERIES, counts=COUNTS, shape=DIMS)
def candidate_scores_rows(shape: tuple[int, int]) -> RowCall:
    queries, keys, scales, begin, end = rows_with_keys(*shape)
    blocks = ascending_blocks(end - begin, 5, SIZE)

    def call(op: Op, ids: Tensor) -> Rows:
        scores = op(*queries[ids], keys, scales, begin[ids], end[ids], blocks[ids], SIZE)
        return known(scores, compact_lengths(blocks[ids], (end - begin)[ids], SIZE))

    return call
