"""Rows of attention: queries with their keys, selections, pooled entries."""

from __future__ import annotations

import torch
from kernels_testing.paged_attention import paged_case
from kernels_testing.row_cases import CARRIERS, FLOATS, ROWS, Op, integers, random, rows_of, written
from torch import Tensor

from thalweg.kernels import RecordFormat
from thalweg.kernels.testing import RowCall, Rows

COUNTS = (1, 2, 3, 4, 5, 7, 8, 15, 16, 17, 31, 32, 33)
QUERIES = 48


def attention(dtype: torch.dtype, shape: tuple[int, int]) -> RowCall:
    """Rows with keys, with few, and one with none."""
    heads, dim = shape
    q, keys, sink = random(40, heads, dim, dtype=dtype), random(200, dim, dtype=dtype), random(heads, dtype=dtype)
    indices = integers(-40, 200, 40, 72, seed=5).clamp(min=-1).to(torch.int32)
    indices[3] = -1
    return lambda op, ids: op(q[ids], keys, indices[ids], sink, dim**-0.5)


for name in ("sparse_attention", "sparse_attention_stats"):
    rows_of(name, num_rows=40, counts=COUNTS[:-1], dtype=CARRIERS, shape=[(4, 64), (8, 32), (16, 128)])(attention)
rows_of("sparse_attention", num_rows=40, counts=COUNTS[:-1], dtype=[torch.bfloat16], shape=[(8, 64)])(attention)


@rows_of(
    "paged_sparse_attention",
    num_rows=20,
    counts=COUNTS[:-3],
    dtype=[torch.bfloat16],
    shape=[(8, 64, 1), (8, 64, 3), (4, 128, 1)],
    main_format=[RecordFormat.FP4_MAIN, RecordFormat.MXFP8],
)
def paged_attention(dtype: torch.dtype, shape: tuple[int, int, int], main_format: RecordFormat) -> RowCall:
    """Lists with many keys, and one with none; a list with the rows that share it is what stands on its own."""
    heads, dim, shared = shape
    case = paged_case(20, shared, heads, dim, (64, 64), main_format, dtype)
    case.window_slots[3] = -1
    if case.main_slots is not None:
        case.main_slots[3] = -1
    return lambda op, ids: op(*case.rows(ids)).view(ids.shape[0], shared, heads, dim)


@rows_of("indexer_scores", num_rows=QUERIES, counts=COUNTS, dtype=CARRIERS, shape=[(8, 32), (32, 128), (4, 32)])
def indexer_scores(dtype: torch.dtype, shape: tuple[int, int]) -> RowCall:
    """Queries of one sequence and of several; the columns of a batch are those of its longest row."""
    groups, dim = shape
    q, weights = random(QUERIES, groups, dim, dtype=dtype), random(QUERIES, groups, dtype=dtype)
    keys, begin = random(300, dim, dtype=dtype), torch.tensor([0, 100, 37, 100] * 12)
    end = begin + 1 + torch.arange(QUERIES) * 4 % 190
    widest = int((end - begin).max())

    def call(op: Op, ids: Tensor) -> Rows:
        scores = op(q[ids], weights[ids], keys, begin[ids], end[ids])
        return torch.nn.functional.pad(scores, (0, widest - scores.shape[1]), value=-torch.inf)

    return call


SCORES = (torch.float64, torch.bfloat16)


def scores_and_visible(dtype: torch.dtype = torch.float64) -> tuple[Tensor, Tensor]:
    """[ROWS, 120] with many equal ones; int32: how many entries a row sees, from none to all."""
    return random(ROWS, 120, dtype=torch.bfloat16).to(dtype), (torch.arange(ROWS) * 2 % 121).int()


@rows_of("block_scores", dtype=SCORES)
def block_scores(dtype: torch.dtype) -> RowCall:
    scores, visible = scores_and_visible(dtype)
    return lambda op, ids: op(scores[ids], visible[ids], 8)


@rows_of("select_topk", dtype=SCORES, k=(1, 16, 130))
def select_topk(dtype: torch.dtype, k: int) -> RowCall:
    scores, visible = scores_and_visible(dtype)
    return lambda op, ids: op(scores[ids], visible[ids], k)


@rows_of("select_candidate_blocks", dtype=SCORES)
def select_candidate_blocks(dtype: torch.dtype) -> RowCall:
    scores, visible = scores_and_visible(dtype)
    return lambda op, ids: op(scores[:, :15][ids], visible[ids], 8, 6)


def listed_blocks() -> Tensor:
    """int32 [ROWS, 6] of 15 blocks, some of them none."""
    return torch.stack([torch.arange(15).roll(row)[:6] for row in range(ROWS)]).where(random(ROWS, 6) < 1, -1).int()


@rows_of("restrict_to_blocks")
def restrict_to_blocks() -> RowCall:
    scores, blocks = scores_and_visible()[0], listed_blocks()
    return lambda op, ids: op(scores[ids], blocks[ids], 8)


@rows_of("compact_lengths")
def compact_lengths() -> RowCall:
    visible, blocks = scores_and_visible()[1], listed_blocks()
    return lambda op, ids: op(blocks[ids], visible[ids], 8)


@rows_of("restore_indices")
def restore_indices() -> RowCall:
    compact, blocks, offset = integers(-1, 50, ROWS, 16).int(), listed_blocks(), integers(0, 99, ROWS, seed=1)
    return lambda op, ids: op(compact[ids], blocks[ids], 8, offset[ids])


@rows_of("pool_groups", dtype=FLOATS, ratio=(2, 4, 128))
def pool_groups(dtype: torch.dtype, ratio: int) -> RowCall:
    score, latent = random(ROWS, ratio, 48, dtype=dtype), random(ROWS, ratio, 48, dtype=dtype, seed=1)
    return lambda op, ids: op(score[ids], latent[ids])


@rows_of("pool_decode", dtype=CARRIERS)
def pool_decode(dtype: torch.dtype) -> RowCall:
    """One query of each sequence; padding repeats one, slot and all. The ring is part of the result."""
    score, latent = random(ROWS, 48, dtype=dtype), random(ROWS, 48, dtype=dtype, seed=1)
    ring = random(ROWS, 6, 2, 48, dtype=dtype)

    def call(op: Op, ids: Tensor) -> Rows:
        state = ring.clone()
        pooled = op(score[ids], latent[ids], state, ids, ids * 7 % 40 + 1, 4)
        return pooled, state[ids]

    return call


@rows_of("pool_prefill", num_rows=33, counts=COUNTS[:-2], dtype=CARRIERS)
def pool_prefill(dtype: torch.dtype) -> RowCall:
    """One chunk of 8 rows of each sequence, which completes two entries."""
    score, latent = random(33, 8, 48, dtype=dtype), random(33, 8, 48, dtype=dtype, seed=1)
    ring = random(33, 6, 2, 48, dtype=dtype)

    def call(op: Op, ids: Tensor) -> Rows:
        state, offsets = ring.clone(), torch.arange(ids.shape[0] + 1, device=ids.device)
        first = ids % 4
        rows = score[ids].flatten(0, 1), latent[ids].flatten(0, 1)
        pooled = op(*rows, state, ids, 8 * offsets, first, 2 * offsets, 4, num_entries=2 * ids.shape[0])
        return pooled.view(ids.shape[0], 2, -1), state[ids]

    return call


@rows_of("expand_window_reads")
def expand_window_reads() -> RowCall:
    reads = torch.stack((integers(0, 400, ROWS), integers(0, 17, ROWS, seed=1)), 1).int()
    return lambda op, ids: op(reads[ids], 16, 20)


@rows_of("expand_block_entries")
def expand_block_entries() -> RowCall:
    """A row's offset counts through the whole flattened table, as its contract says."""
    tables, counts = integers(1, 99, ROWS, 4).int(), integers(0, 33, ROWS, seed=1)

    def call(op: Op, ids: Tensor) -> Rows:
        place = torch.arange(ids.shape[0], device=ids.device) * 4 * 8
        return op(torch.stack((place, counts[ids]), 1).int(), tables[ids], 8, 32)

    return call


@rows_of("expand_ranges")
def expand_ranges() -> RowCall:
    ranges = torch.stack((integers(0, 400, ROWS), integers(0, 40, ROWS, seed=1)), 1).int()
    return lambda op, ids: op(ranges[ids], 32)


@rows_of("expand_window_pivots")
def expand_window_pivots() -> RowCall:
    pivots = integers(0, 20, ROWS, 4).int()
    return lambda op, ids: op(pivots[ids], 32)


@rows_of("cat_kv_indices")
def cat_kv_indices() -> RowCall:
    window, compressed = integers(-1, 99, ROWS, 16).int(), integers(-1, 99, ROWS, 8, seed=1).int()
    return lambda op, ids: op(window[ids], compressed[ids], 1000)


@rows_of("topk_to_slots")
def topk_to_slots() -> RowCall:
    topk, visible, tables = integers(-1, 64, ROWS, 16).int(), integers(0, 17, ROWS), integers(1, 99, ROWS, 8).int()
    return lambda op, ids: op(topk[ids], visible[ids], tables[ids], 8)


@rows_of("apply_token_bitmask")
def apply_token_bitmask() -> RowCall:
    """Every third row has no mask."""
    logits, bitmask = random(ROWS, 70, dtype=torch.float32), integers(-(2**31), 2**31, ROWS, 3).int()

    def call(op: Op, ids: Tensor) -> Rows:
        place = torch.arange(ids.shape[0], device=ids.device)
        return written(logits[ids], lambda copy: op(copy, bitmask[ids], torch.where(ids % 3 > 0, place, -1)))

    return call
