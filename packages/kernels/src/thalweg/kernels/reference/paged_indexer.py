"""The indexer on stored bytes: scores of MXFP4 queries with MXFP4 keys in pages or in rows, rounded to bfloat16 once.

Letters: T or n rows, G index heads of d columns, w cells of a block table, C candidate blocks. A query is packed e2m1
uint8 [.., G, d / 2] with scales ue8m0 uint8 [.., G, d / 32]; its head weights are bfloat16 [.., G]. Products and sums
are float32. What lies in columns that a contract calls undefined differs from one implementation to the next.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import torch
from torch import Tensor

from thalweg.interfaces import ConfigError
from thalweg.kernels.reference.cache import gather_records
from thalweg.kernels.reference.indexer import compact_lengths, indexer_scores, restore_indices
from thalweg.kernels.reference.numerics import MOST, check_count, check_shape, check_tensor
from thalweg.kernels.reference.quant import MX_GROUP, dequantize_mxfp4
from thalweg.kernels.reference.record_format import RecordFormat


def paged_indexer_scores(
    q: Tensor, q_scales: Tensor, head_weights: Tensor, view: Tensor, block_tables: Tensor, visible: Tensor, width: int
) -> Tensor:
    """Scores bfloat16 [T, width] of every row with the first visible[i] entries of its pages; others are undefined.

    view: uint8 [pages, entries, 1, record] of MXFP4_INDEX records, pages any distance apart. block_tables: int32
    [T, w]; cells behind a row's last visible entry are not read. visible: int32 [T], at most width. Rows of one
    sequence lie together, and the tables of those rows agree where both are read.
    """
    check_paged_queries(q, q_scales, head_weights, view, block_tables, visible)
    check_width(width)
    _check_reach("visible", visible, min(width, block_tables.shape[1] * view.shape[1]))
    sequences, sequence = torch.unique_consecutive(block_tables, return_inverse=True, dim=0)
    longest = visible.new_zeros(sequences.shape[0]).scatter_reduce_(0, sequence, visible, "amax").long()
    first = longest.cumsum(0) - longest
    owner = torch.repeat_interleave(longest)
    entry = torch.arange(owner.shape[0], device=q.device) - first[owner]
    keys = gather_records(view, _paged_slots(sequences, owner, entry, view.shape[1]), RecordFormat.MXFP4_INDEX)
    begin = first[sequence]
    return _scores(q, q_scales, head_weights, keys, begin, begin + visible, width)


def paged_candidate_scores(
    q: Tensor,
    q_scales: Tensor,
    head_weights: Tensor,
    view: Tensor,
    block_tables: Tensor,
    visible: Tensor,
    blocks: Tensor,
    block_size: int,
) -> Tensor:
    """Scores bfloat16 [T, C * block_size] of every row with the visible entries of its candidate blocks, in order.

    blocks: int32 [T, C] ascending, -1 behind the last one. Column c is entry blocks[c / block_size] * block_size + c
    mod block_size; columns from compact_lengths(blocks, visible, block_size) on are undefined. The rest is as
    paged_indexer_scores has it.
    """
    check_paged_queries(q, q_scales, head_weights, view, block_tables, visible)
    check_blocks(blocks, block_size, q.shape[0])
    _check_reach("visible", visible, block_tables.shape[1] * view.shape[1])
    row, entry, counts = _listed_entries(blocks, visible, block_size)
    keys = gather_records(view, _paged_slots(block_tables, row, entry, view.shape[1]), RecordFormat.MXFP4_INDEX)
    end = counts.cumsum(0)
    return _scores(q, q_scales, head_weights, keys, end - counts, end, blocks.shape[1] * block_size)


def indexer_scores_rows(
    q: Tensor,
    q_scales: Tensor,
    head_weights: Tensor,
    keys: Tensor,
    key_scales: Tensor,
    begin: Tensor,
    end: Tensor,
    width: int,
) -> Tensor:
    """Scores bfloat16 [n, width] of row i with keys begin[i] to end[i] - 1; columns from end - begin on are undefined.

    keys: packed uint8 [M, d / 2]; key_scales: uint8 [M, d / 32]; begin, end: int32 [n], no more than width apart.
    """
    check_rows_queries(q, q_scales, head_weights, keys, key_scales, begin, end)
    check_width(width)
    _check_reach("end - begin", end - begin, width)
    return _scores(q, q_scales, head_weights, dequantize_mxfp4(keys, key_scales), begin, end, width)


def candidate_scores_rows(
    q: Tensor,
    q_scales: Tensor,
    head_weights: Tensor,
    keys: Tensor,
    key_scales: Tensor,
    begin: Tensor,
    end: Tensor,
    blocks: Tensor,
    block_size: int,
) -> Tensor:
    """Scores bfloat16 [n, C * block_size] of row i with its candidate blocks among keys begin[i] to end[i] - 1.

    blocks: int32 [n, C] as for paged_candidate_scores; block b starts at key begin[i] + b * block_size. The rest is as
    indexer_scores_rows has it.
    """
    check_rows_queries(q, q_scales, head_weights, keys, key_scales, begin, end)
    check_blocks(blocks, block_size, q.shape[0])
    row, entry, counts = _listed_entries(blocks, end - begin, block_size)
    listed = dequantize_mxfp4(keys, key_scales)[begin[row] + entry]
    last = counts.cumsum(0)
    return _scores(q, q_scales, head_weights, listed, last - counts, last, blocks.shape[1] * block_size)


def _scores(
    q: Tensor, q_scales: Tensor, head_weights: Tensor, keys: Tensor, begin: Tensor, end: Tensor, width: int
) -> Tensor:
    """indexer_scores of float32 keys [M, d], filled up to `width` and rounded."""
    queries = dequantize_mxfp4(q, q_scales)
    scores = indexer_scores(queries, head_weights.float(), keys, begin, end).bfloat16()
    return torch.nn.functional.pad(scores, (0, width - scores.shape[1]), value=-torch.inf)


def _paged_slots(tables: Tensor, row: Tensor, entry: Tensor, entries: int) -> Tensor:
    """Flat slots int64 [m] of entries [m] by the block tables of rows [m]."""
    return tables[row, entry // entries].long() * entries + entry % entries


def _listed_entries(blocks: Tensor, visible: Tensor, block_size: int) -> tuple[Tensor, Tensor, Tensor]:
    """Row and entry int64 [m] of all visible entries in listed blocks, row by row; how many a row has, int64 [n]."""
    counts = compact_lengths(blocks, visible, block_size).long()
    row = torch.repeat_interleave(counts)
    compact = torch.arange(blocks.shape[1] * block_size, device=blocks.device).expand(blocks.shape[0], -1)
    entries = restore_indices(compact, blocks, block_size).long()
    return row, entries[compact < counts[:, None]], counts


def check_paged_queries(
    q: Tensor, q_scales: Tensor, head_weights: Tensor, view: Tensor, block_tables: Tensor, visible: Tensor
) -> None:
    """Raise ConfigError for arguments that do not fit together; contents are not looked at."""
    rows, dim = _check_queries(q, q_scales, head_weights)
    if view.dtype != torch.uint8 or view.dim() != 4 or view.shape[2:] != (1, _record_bytes(dim)):
        raise ConfigError(
            f"view is {view.dtype} {list(view.shape)}; uint8 [pages, entries, 1, {_record_bytes(dim)}] is expected "
            f"with index heads of {dim}"
        )
    if view.stride(3) != 1 or view.stride(1) != view.shape[3]:
        raise ConfigError(f"view has strides {list(view.stride())}; pages must be contiguous inside")
    check_tensor("block_tables", block_tables, (rows, "w"), torch.int32)
    check_tensor("visible", visible, (rows,), torch.int32)


def check_rows_queries(
    q: Tensor, q_scales: Tensor, head_weights: Tensor, keys: Tensor, key_scales: Tensor, begin: Tensor, end: Tensor
) -> None:
    """Raise ConfigError for arguments that do not fit together; contents are not looked at."""
    rows, dim = _check_queries(q, q_scales, head_weights)
    check_shape("keys", keys, ("M", dim // 2))
    check_shape("key_scales", key_scales, (keys.shape[0], dim // MX_GROUP))
    for name, tensor in (("keys", keys), ("key_scales", key_scales)):
        _check_dtype(name, tensor, torch.uint8)
    check_tensor("begin", begin, (rows,), torch.int32)
    check_tensor("end", end, (rows,), torch.int32)


def check_blocks(blocks: Tensor, block_size: int, rows: int) -> None:
    """Raise ConfigError unless blocks are [rows, C] and block_size is positive."""
    check_tensor("blocks", blocks, (rows, "C"), torch.int32)
    check_count("block_size", block_size, 1, MOST // max(blocks.shape[1], 1))


def check_width(width: int) -> None:
    """Raise ConfigError unless the width is a number of columns."""
    check_count("width", width)


def _check_queries(q: Tensor, q_scales: Tensor, head_weights: Tensor) -> tuple[int, int]:
    """Rows and columns of a head of well-formed queries."""
    check_shape("q", q, ("n", "G", "d / 2"))
    rows, heads, dim = q.shape[0], q.shape[1], 2 * q.shape[2]
    if dim == 0 or dim % MX_GROUP:
        raise ConfigError(f"q has index heads of {dim} columns; a positive multiple of {MX_GROUP} is expected")
    check_shape("q_scales", q_scales, (rows, heads, dim // MX_GROUP))
    check_shape("head_weights", head_weights, (rows, heads))
    for name, tensor in (("q", q), ("q_scales", q_scales)):
        _check_dtype(name, tensor, torch.uint8)
    _check_dtype("head_weights", head_weights, torch.bfloat16)
    return rows, dim


def _check_dtype(name: str, tensor: Tensor, dtype: torch.dtype) -> None:
    if tensor.dtype != dtype:
        raise ConfigError(f"{name} has dtype {tensor.dtype}; {dtype} is required")


def _check_reach(name: str, lengths: Tensor, most: int) -> None:
    if lengths.numel() and int(lengths.max()) > most:
        raise ConfigError(f"{name} reaches {int(lengths.max())}; there is room for {most} entries")


def _record_bytes(dim: int) -> int:
    return RecordFormat.MXFP4_INDEX.record_bytes(dim)


OPS: dict[str, Callable[..., Any]] = {
    "paged_indexer_scores": paged_indexer_scores,
    "paged_candidate_scores": paged_candidate_scores,
    "indexer_scores_rows": indexer_scores_rows,
    "candidate_scores_rows": candidate_scores_rows,
}
