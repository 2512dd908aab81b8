"""The slots of selected entries, on Hopper: through the block table of their sequence, several columns to a thread."""
# Without postponed annotations: those of the kernels are their arguments' types to TileLang.
# mypy: disable-error-code="valid-type, name-defined, untyped-decorator"

import functools
import math
from typing import Any

import torch
from torch import Tensor

from thalweg.kernels.reference.metadata import check_topk
from thalweg.kernels.sm90.declared import implementation
from thalweg.kernels.sm90.library import ARCHITECTURE, compiled, tilelang
from thalweg.kernels.sm90.tensors import check_device, name_of, span

THREADS = 256


@functools.cache
def topk_slots_kernel(
    entries: int,
    vector: int,
    topk_dtype: torch.dtype,
    visible_dtype: torch.dtype,
    table_dtype: torch.dtype,
    architecture: str = ARCHITECTURE,
) -> Any:
    """The compiled kernel of `topk_to_slots`; a thread takes `vector` columns of a row."""
    T = tilelang().language
    num_slots, num_rows, num_cells = T.dynamic("num_slots"), T.dynamic("num_rows"), T.dynamic("num_cells", "int64")

    @T.prim_func
    def topk_to_slots(
        topk: T.Tensor((num_slots,), name_of(topk_dtype)),
        visible: T.Tensor((num_rows,), name_of(visible_dtype)),
        tables: T.Tensor((num_cells,), name_of(table_dtype)),
        slots: T.Tensor((num_slots,), "int32"),
        width: T.int32,
        queries: T.int32,
        table_width: T.int32,
        table_stride: T.int64,
    ) -> None:
        with T.Kernel(T.ceildiv(num_slots, THREADS * vector), threads=THREADS) as block:
            place, row, left, cell = (T.alloc_var("int32") for _ in range(4))
            base = T.alloc_var("int64")
            place = block * THREADS + T.get_thread_binding()
            if place * vector < num_slots:
                given, made = T.alloc_local((vector,), name_of(topk_dtype)), T.alloc_local((vector,), "int32")
                row = T.truncdiv(place * vector, width)
                base = T.truncdiv(row, queries) * table_stride
                left = T.cast(visible[row], "int32") - (place * vector - row * width)
                for i in T.vectorized(vector):
                    given[i] = topk[place * vector + i]
                for i in T.unroll(vector):
                    cell = T.cast(T.truncdiv(given[i], entries), "int32")
                    made[i] = -1
                    if i < left and given[i] >= 0 and cell < table_width:
                        made[i] = T.cast(tables[base + cell], "int32") * entries
                        made[i] = made[i] + T.cast(given[i], "int32") - cell * entries
                for i in T.vectorized(vector):
                    slots[place * vector + i] = made[i]

    return compiled(topk_to_slots, architecture)


def topk_to_slots(topk: Tensor, visible_entries: Tensor, block_tables: Tensor, entries_per_block: int) -> Tensor:
    """As the reference; an entry beyond the block table becomes -1."""
    check_topk(topk, visible_entries, block_tables, entries_per_block)
    check_device(topk=topk, visible_entries=visible_entries, block_tables=block_tables)
    slots = torch.empty(topk.shape, dtype=torch.int32, device=topk.device)
    if block_tables.numel() == 0:
        return slots.fill_(-1)
    if slots.numel():
        tables = block_tables if block_tables.stride(1) == 1 else block_tables.contiguous()
        vector = math.gcd(topk.shape[-1], 4)
        kernel = topk_slots_kernel(entries_per_block, vector, topk.dtype, visible_entries.dtype, tables.dtype)
        queries = topk.shape[1] if topk.dim() == 3 else 1
        with torch.cuda.device(slots.device):
            flat = (_aligned(topk.reshape(-1)), visible_entries.reshape(-1), span(tables), slots.view(-1))
            kernel(*flat, topk.shape[-1], queries, tables.shape[1], tables.stride(0))
    return slots


def _aligned(flat: Tensor) -> Tensor:
    """The tensor, or a copy that begins where four of its elements can be read at once."""
    return flat if flat.data_ptr() % (4 * flat.element_size()) == 0 else flat.clone()


IMPLEMENTATIONS = (implementation(topk_to_slots),)

COMPILE_EXAMPLES = {"topk_to_slots": functools.partial(topk_slots_kernel, 64, 4, torch.int32, torch.int32, torch.int32)}
"""Kernels at the dimensions of the released model, by name; each takes an architecture."""
