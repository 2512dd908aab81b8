"""What a drafter reads and writes, on Hopper: index rows of draft blocks, and rows that go into a pool of slots."""
# Without postponed annotations: those of the kernels are their arguments' types to TileLang.
# mypy: disable-error-code="valid-type, name-defined, untyped-decorator"

import functools
import math
from typing import Any

import torch
from torch import Tensor

from thalweg.interfaces import ConfigError
from thalweg.kernels.reference.drafting import (
    DraftIndices,
    check_draft_block,
    check_draft_rows,
    key_columns,
)
from thalweg.kernels.sm90.declared import implementation
from thalweg.kernels.sm90.library import ARCHITECTURE, compiled, tilelang
from thalweg.kernels.sm90.record_shape import unit_dtype
from thalweg.kernels.sm90.tensors import check_device, name_of, span

THREADS = 256
PIECE_UNITS = 4 * THREADS
"""Units of a row that one block copies."""


@functools.cache
def draft_metadata_kernel(
    draft_length: int,
    window_size: int,
    ring_length: int,
    dtypes: tuple[torch.dtype, torch.dtype],
    architecture: str = ARCHITECTURE,
) -> Any:
    """The compiled kernel of `draft_metadata`; dtypes: of its two tensors."""
    T = tilelang().language
    num_sequences, num_rows, num_keys = T.dynamic("N"), T.dynamic("num_rows"), T.dynamic("num_keys")
    states, last_positions = map(name_of, dtypes)
    columns = key_columns(window_size, draft_length)

    @T.prim_func
    def draft_metadata(
        state_slots: T.Tensor((num_sequences,), states),
        positions: T.Tensor((num_sequences,), last_positions),
        slots: T.Tensor((num_rows,), "int32"),
        block_positions: T.Tensor((num_rows,), "int32"),
        is_valid: T.Tensor((num_rows,), "uint8"),
        key_slots: T.Tensor((num_keys,), "int32"),
    ) -> None:
        with T.Kernel(num_sequences, threads=THREADS) as sequence:
            last, base, column, key = (
                T.alloc_var("int32"), T.alloc_var("int32"), T.alloc_var("int32"), T.alloc_var("int32")
            )  # fmt: skip
            last = T.cast(positions[sequence], "int32")
            base = T.cast(state_slots[sequence], "int32") * ring_length
            column = T.get_thread_binding()
            while column < draft_length:
                if last >= 0:
                    slots[sequence * draft_length + column] = base + T.truncmod(last + 1 + column, ring_length)
                    block_positions[sequence * draft_length + column] = last + 1 + column
                    is_valid[sequence * draft_length + column] = T.cast(1, "uint8")
                else:
                    slots[sequence * draft_length + column] = -1
                    block_positions[sequence * draft_length + column] = 0
                    is_valid[sequence * draft_length + column] = T.cast(0, "uint8")
                column = column + THREADS
            column = T.get_thread_binding()
            while column < columns:
                key = last - window_size + 1 + column
                if last >= 0 and key >= 0 and column < window_size + draft_length:
                    key_slots[sequence * columns + column] = base + T.truncmod(key, ring_length)
                else:
                    key_slots[sequence * columns + column] = -1
                column = column + THREADS

    return compiled(draft_metadata, architecture)


@functools.cache
def draft_rows_kernel(unit: int, dtype: torch.dtype, architecture: str = ARCHITECTURE) -> Any:
    """The compiled kernel of `store_draft_rows`, which moves `unit` bytes at once; dtype: of the slots."""
    T = tilelang().language
    num_sequences, num_row_elements = T.dynamic("N"), T.dynamic("num_row_elements", "int64")
    num_pool_elements = T.dynamic("num_pool_elements", "int64")
    elements, values = max(unit // 4, 1), name_of(unit_dtype(unit))

    @T.prim_func
    def store_draft_rows(
        write_slots: T.Tensor((num_sequences,), name_of(dtype)),
        rows: T.Tensor((num_row_elements,), values),
        pool: T.Tensor((num_pool_elements,), values),
        row_units: T.int64,
        slot_units: T.int64,
        num_slots: T.int64,
    ) -> None:
        with T.Kernel(num_sequences, T.ceildiv(row_units, PIECE_UNITS), threads=THREADS) as (row, piece):
            slot, place = T.alloc_var("int64"), T.alloc_var("int64")
            slot = T.cast(write_slots[row], "int64")
            if slot > 0 and slot < num_slots:
                for step in T.unroll(PIECE_UNITS // THREADS):
                    place = T.cast(piece, "int64") * PIECE_UNITS + step * THREADS + T.get_thread_binding()
                    if place < row_units:
                        for i in T.vectorized(elements):
                            pool[(slot * slot_units + place) * elements + i] = rows[
                                (row * row_units + place) * elements + i
                            ]

    return compiled(store_draft_rows, architecture)


def draft_metadata(
    state_slots: Tensor, positions: Tensor, *, draft_length: int, window_size: int, ring_length: int
) -> DraftIndices:
    """As the reference."""
    check_draft_block(state_slots, positions, draft_length, window_size, ring_length)
    check_device(state_slots=state_slots, positions=positions)
    count, device = positions.shape[0], positions.device
    integers = torch.empty((2, count * draft_length), dtype=torch.int32, device=device)
    is_valid = torch.empty(count * draft_length, dtype=torch.bool, device=device)
    key_slots = torch.empty((count, key_columns(window_size, draft_length)), dtype=torch.int32, device=device)
    if count:
        dtypes = (state_slots.dtype, positions.dtype)
        kernel = draft_metadata_kernel(draft_length, window_size, ring_length, dtypes)
        with torch.cuda.device(device):
            given = (state_slots.contiguous(), positions.contiguous())
            kernel(*given, integers[0], integers[1], is_valid.view(torch.uint8), key_slots.view(-1))
    return DraftIndices(slots=integers[0], positions=integers[1], is_valid=is_valid, key_slots=key_slots)


def store_draft_rows(pool: Tensor, write_slots: Tensor, rows: Tensor) -> None:
    """As the reference; a slot beyond the pool takes nothing. The elements of a slot must be adjacent."""
    check_draft_rows(pool, write_slots, rows)
    check_device(pool=pool, write_slots=write_slots, rows=rows)
    if pool.numel() == 0 or rows.numel() == 0:
        return
    if not pool[0].is_contiguous():
        raise ConfigError(f"pool has strides {list(pool.stride())}; the elements of a slot must be adjacent")
    rows = rows.contiguous()
    row_bytes, slot_bytes = rows[0].nbytes, pool.stride(0) * pool.element_size()
    unit = math.gcd(16, row_bytes, slot_bytes, pool.data_ptr(), rows.data_ptr())
    kernel = draft_rows_kernel(unit, write_slots.dtype)
    values = unit_dtype(unit)
    with torch.cuda.device(pool.device):
        flat = (span(rows.detach(), values), span(pool.detach(), values))
        kernel(write_slots.contiguous(), *flat, row_bytes // unit, slot_bytes // unit, pool.shape[0])


IMPLEMENTATIONS = tuple(implementation(function) for function in (draft_metadata, store_draft_rows))

COMPILE_EXAMPLES = {
    "draft_metadata": functools.partial(draft_metadata_kernel, 5, 128, 134, (torch.int32, torch.int32)),
    "store_draft_rows": functools.partial(draft_rows_kernel, 16, torch.int32),
}
"""Kernels at the dimensions of the released model, by name; each takes an architecture."""
