"""What a decode step reads and writes, on Hopper: a block per sequence, which finds its rows by adding up lengths."""
# Without postponed annotations: those of the kernels are their arguments' types to TileLang.
# mypy: disable-error-code="valid-type, name-defined, untyped-decorator"

import functools
from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any

import torch
from torch import Tensor

from thalweg.interfaces import ConfigError
from thalweg.kernels.reference.metadata import PLACEHOLDER_QUERY, DecodeRows, check_decode
from thalweg.kernels.sm90.declared import implementation
from thalweg.kernels.sm90.library import ARCHITECTURE, compiled, tilelang
from thalweg.kernels.sm90.sequence_rows import THREADS, sequence_macros
from thalweg.kernels.sm90.tensors import check_device, name_of, span

POSITION, QUERY, STATE, STORE, CONTEXT, READS, BY_RATIO = 0, 1, 2, 3, 4, 5, 7
"""Lines of the one tensor that the kernel writes; READS takes two, and each ratio three from BY_RATIO on."""
LINE_ALIGNMENT = 32
CELLS_PER_BLOCK = 2048
"""Cells of a block table that one block copies, at most."""


@dataclass(frozen=True)
class DecodeShape:
    """What a deployment fixes."""

    tokens_per_block: int
    window_size: int
    ring_length: int
    ratios: tuple[int, ...]
    table_width: int


@functools.cache
def decode_metadata_kernel(
    shape: DecodeShape, dtypes: tuple[torch.dtype, ...], architecture: str = ARCHITECTURE
) -> Any:
    """The compiled kernel; dtypes: of the five integer inputs."""
    T, macro = tilelang().language, sequence_macros()
    num_sequences, num_ids, num_offsets = T.dynamic("N"), T.dynamic("num_ids", "int64"), T.dynamic("num_offsets")
    num_queries, num_fields = T.dynamic("T"), T.dynamic("num_fields", "int64")
    num_cells = T.dynamic("num_cells", "int64")
    lengths, contexts, states, ids, offsets = map(name_of, dtypes)
    window, ring, width = shape.window_size, shape.ring_length, shape.table_width

    @T.macro
    def write_ratio(
        fields: Any, line: Any, ratio: int, index: int, position: Any, row: Any, block_ids: Any, first: Any,
        num_own: Any, tables: Any, table_row: Any,
    ) -> None:  # fmt: skip
        entries = shape.tokens_per_block // ratio
        entry, block, slot, start = (
            T.alloc_var("int32"), T.alloc_var("int32"), T.alloc_var("int32"), T.alloc_var("int32")
        )  # fmt: skip
        entry = T.truncdiv(position, ratio)
        start = 0
        slot = -1
        if position >= 0 and T.truncmod(position + 1, ratio) == 0:
            block = T.min(T.truncdiv(entry, entries), width - 1)
            slot = tables[table_row + block]
            if block < num_own:
                slot = T.cast(block_ids[first + block], "int32")
            slot = slot * entries + T.truncmod(entry, entries)
            start = entry * ratio
        fields[(BY_RATIO + 3 * index) * line + row] = start
        fields[(BY_RATIO + 3 * index + 1) * line + row] = slot
        fields[(BY_RATIO + 3 * index + 2) * line + row] = T.truncdiv(position + 1, ratio)

    @T.prim_func
    def decode_metadata(
        query_lengths: T.Tensor((num_sequences,), lengths),
        context_lengths: T.Tensor((num_sequences,), contexts),
        state_slots: T.Tensor((num_sequences,), states),
        block_ids: T.Tensor((num_ids,), ids),
        block_offsets: T.Tensor((num_offsets,), offsets),
        is_placeholder: T.Tensor((num_sequences,), "uint8"),
        fields: T.Tensor((num_fields,), "int32"),
        is_valid: T.Tensor((num_queries,), "uint8"),
        tables: T.Tensor((num_cells,), "int32"),
        line: T.int64,
        table_stride: T.int64,
        pieces: T.int32,
    ) -> None:
        with T.Kernel(num_sequences, pieces, threads=THREADS) as (sequence, piece):
            thread = T.get_thread_binding()
            before = T.alloc_var("int32")
            before = macro.sum_before(query_lengths, sequence)
            length, state, past, num_own = (
                T.alloc_var("int32"), T.alloc_var("int32"), T.alloc_var("int32"), T.alloc_var("int32")
            )  # fmt: skip
            length = T.min(T.cast(query_lengths[sequence], "int32"), num_queries - before)
            state = T.cast(state_slots[sequence], "int32")
            past = T.cast(context_lengths[sequence], "int32") - T.cast(query_lengths[sequence], "int32")
            first = T.alloc_var("int64")
            first = T.cast(block_offsets[sequence], "int64")
            num_own = T.cast(block_offsets[sequence + 1] - block_offsets[sequence], "int32")
            # Numbers are not read back to be refused: nobody has blocks before or beyond the list.
            if first < 0 or first + num_own > num_ids:
                num_own = 0
            if piece == 0:
                rank, row, position, visible = (
                    T.alloc_var("int32"), T.alloc_var("int32"), T.alloc_var("int32"), T.alloc_var("int32")
                )  # fmt: skip
                rank = thread
                while rank < length:
                    row = before + rank
                    position = past + rank
                    visible = T.min(position + 1, window)
                    fields[POSITION * line + row] = position
                    fields[CONTEXT * line + row] = position + 1
                    fields[STATE * line + row] = state
                    fields[STORE * line + row] = state * ring + T.truncmod(position, ring)
                    fields[READS * line + 2 * row] = state * ring + T.truncmod(position - visible + 1, ring)
                    fields[READS * line + 2 * row + 1] = visible
                    if is_placeholder[sequence] != 0:
                        fields[QUERY * line + row] = PLACEHOLDER_QUERY
                        is_valid[row] = T.cast(0, "uint8")
                    else:
                        fields[QUERY * line + row] = sequence
                        is_valid[row] = T.cast(1, "uint8")
                    for index, ratio in enumerate(shape.ratios):
                        write_ratio(
                            fields, line, ratio, index, position, row, block_ids, first, num_own, tables,
                            row * table_stride,
                        )  # fmt: skip
                    rank = rank + THREADS
            column, copy = T.alloc_var("int32"), T.alloc_var("int32")
            column = piece * THREADS + thread
            while column < T.min(num_own, width):
                copy = before
                while copy < before + length:
                    tables[copy * table_stride + column] = T.cast(block_ids[first + column], "int32")
                    copy = copy + 1
                column = column + pieces * THREADS

    return compiled(decode_metadata, architecture)


def decode_metadata(
    query_lengths: Tensor,
    context_lengths: Tensor,
    state_slots: Tensor,
    block_ids: Tensor,
    block_offsets: Tensor,
    is_placeholder: Tensor,
    *,
    tokens_per_block: int,
    window_size: int,
    ring_length: int,
    ratios: Sequence[int],
    table_width: int,
    num_queries: int | None = None,
    max_blocks: int | None = None,
    block_tables: Tensor | None = None,
) -> DecodeRows:
    """As the reference, in one launch; num_queries and max_blocks are required, for nothing is read back.

    A sequence whose blocks do not lie in block_ids has none, and rows before position 0 complete no entry.
    All tensors but block_tables are views of one. The int32 rows of a block table may lie apart.
    """
    check_decode(
        query_lengths, context_lengths, state_slots, block_ids, block_offsets, is_placeholder, tokens_per_block,
        window_size, ring_length, ratios, table_width, num_queries, max_blocks,
    )  # fmt: skip
    if num_queries is None or max_blocks is None:
        raise ConfigError(
            f"num_queries is {num_queries} and max_blocks {max_blocks}; kernels of sm90 read neither back and need both"
        )
    given = {
        "query_lengths": query_lengths,
        "context_lengths": context_lengths,
        "state_slots": state_slots,
        "block_ids": block_ids,
        "block_offsets": block_offsets,
    }
    device = query_lengths.device
    check_device(**given, is_placeholder=is_placeholder)
    tables = _tables(block_tables, num_queries, table_width, device)
    line = -(-max(num_queries, 1) // LINE_ALIGNMENT) * LINE_ALIGNMENT
    fields = torch.empty((BY_RATIO + 3 * len(ratios), line), dtype=torch.int32, device=device)
    is_valid = torch.empty(num_queries, dtype=torch.bool, device=device)
    if query_lengths.shape[0] and num_queries:
        integers = [tensor.contiguous() for tensor in given.values()]
        if block_ids.numel() == 0:
            integers[3] = torch.zeros(1, dtype=block_ids.dtype, device=device)
        shape = DecodeShape(tokens_per_block, window_size, ring_length, tuple(ratios), table_width)
        kernel = decode_metadata_kernel(shape, tuple(tensor.dtype for tensor in integers))
        with torch.cuda.device(device):
            kernel(
                *integers,
                is_placeholder.bool().contiguous().view(torch.uint8),
                fields.view(-1),
                is_valid.view(torch.uint8),
                span(tables),
                line,
                tables.stride(0),
                max(-(-max_blocks // CELLS_PER_BLOCK), 1),
            )
    return _rows(fields, num_queries, is_valid, tables, ratios)


def _tables(block_tables: Tensor | None, num_queries: int, table_width: int, device: torch.device) -> Tensor:
    if block_tables is None:
        return torch.zeros((num_queries, table_width), dtype=torch.int32, device=device)
    if block_tables.shape != (num_queries, table_width):
        raise ConfigError(f"block_tables is {tuple(block_tables.shape)}; ({num_queries}, {table_width}) is needed")
    if block_tables.dtype != torch.int32 or (block_tables.numel() and block_tables.stride(1) != 1):
        raise ConfigError(
            f"block_tables is {block_tables.dtype} with strides {list(block_tables.stride())}; int32 with a last "
            "stride of 1 is required"
        )
    check_device(query_lengths=torch.empty(0, device=device), block_tables=block_tables)
    return block_tables


def _rows(fields: Tensor, num_queries: int, is_valid: Tensor, tables: Tensor, ratios: Sequence[int]) -> DecodeRows:
    """The lines of what the kernel wrote, by name."""
    line = fields[:, :num_queries]
    by_ratio = [{ratio: line[BY_RATIO + 3 * index + part] for index, ratio in enumerate(ratios)} for part in range(3)]
    return DecodeRows(
        positions=line[POSITION],
        valid_mask=is_valid,
        query_indices=line[QUERY],
        state_slots=line[STATE],
        window_store_slots=line[STORE],
        window_reads=fields[READS : READS + 2].view(-1)[: 2 * num_queries].view(num_queries, 2),
        context_lengths=line[CONTEXT],
        block_tables=tables,
        compressed_positions=by_ratio[0],
        compressed_store_slots=by_ratio[1],
        visible_entries=by_ratio[2],
    )


IMPLEMENTATIONS = (implementation(decode_metadata),)

COMPILE_EXAMPLES = {
    "decode_metadata": functools.partial(
        decode_metadata_kernel, DecodeShape(128, 128, 134, (1, 2), 1088), (torch.int32,) * 5
    ),
}
"""Kernels at the dimensions of the released model, by name; each takes an architecture."""
