"""Compact descriptions of what a row reads, expanded into index rows, on Hopper: one thread per index."""
# Without postponed annotations: those of the kernels are their arguments' types to TileLang.
# mypy: disable-error-code="valid-type, name-defined, untyped-decorator"

import functools
from collections.abc import Callable
from typing import Any

import torch
from torch import Tensor

from thalweg.kernels.reference.cache import check_segments
from thalweg.kernels.reference.metadata import check_kv_indices, check_pivots, check_window_reads
from thalweg.kernels.sm90.declared import implementation
from thalweg.kernels.sm90.library import ARCHITECTURE, compiled, tilelang
from thalweg.kernels.sm90.tensors import check_device, name_of, span

THREADS = 256


@functools.cache
def window_reads_kernel(width: int, ring_length: int, dtype: torch.dtype, architecture: str = ARCHITECTURE) -> Any:
    """The compiled kernel of `expand_window_reads`."""
    T: Any = tilelang().language

    @T.macro
    def slot_of(reads: Any, row: Any, column: Any) -> Any:
        offset, slot = T.alloc_var("int32"), T.alloc_var("int32")
        offset = T.cast(reads[row, 0], "int32")
        slot = -1
        if column < reads[row, 1]:
            slot = T.truncmod(offset, ring_length) + column
            slot = offset - T.truncmod(offset, ring_length) + T.truncmod(slot, ring_length)
        return slot

    return _expanding(2, width, dtype, slot_of, architecture)


@functools.cache
def window_pivots_kernel(width: int, dtype: torch.dtype, architecture: str = ARCHITECTURE) -> Any:
    """The compiled kernel of `expand_window_pivots`."""
    T: Any = tilelang().language

    @T.macro
    def index_of(pivots: Any, row: Any, column: Any) -> Any:
        length, index = T.alloc_var("int32"), T.alloc_var("int32")
        length = T.cast(pivots[row, 1], "int32")
        index = -1
        if column < length:
            index = T.cast(pivots[row, 0], "int32") + column
        elif column - length < pivots[row, 3]:
            index = T.cast(pivots[row, 2], "int32") + column - length
        return index

    return _expanding(4, width, dtype, index_of, architecture)


def _expanding(numbers: int, width: int, dtype: torch.dtype, index_of: Any, architecture: str) -> Any:
    """The compiled kernel that makes `width` indices of every row of `numbers`; index_of: a macro, of one index."""
    T: Any = tilelang().language
    num_rows, num_indices = T.dynamic("T"), T.dynamic("num_indices")

    @T.prim_func
    def expand_rows(
        rows: T.Tensor((num_rows, numbers), name_of(dtype)), indices: T.Tensor((num_indices,), "int32")
    ) -> None:
        with T.Kernel(T.ceildiv(num_indices, THREADS), threads=THREADS) as block:
            place, row = T.alloc_var("int32"), T.alloc_var("int32")
            place = block * THREADS + T.get_thread_binding()
            if place < num_indices:
                row = T.truncdiv(place, width)
                indices[place] = index_of(rows, row, place - row * width)

    return compiled(expand_rows, architecture)


@functools.cache
def cat_indices_kernel(window: torch.dtype, compressed: torch.dtype, architecture: str = ARCHITECTURE) -> Any:
    """The compiled kernel of `cat_kv_indices`, for the dtypes of its two parts."""
    T = tilelang().language
    num_window, num_compressed = T.dynamic("num_window", "int64"), T.dynamic("num_compressed", "int64")
    num_indices = T.dynamic("num_indices")

    @T.prim_func
    def cat_kv_indices(
        window_indices: T.Tensor((num_window,), name_of(window)),
        compressed_indices: T.Tensor((num_compressed,), name_of(compressed)),
        indices: T.Tensor((num_indices,), name_of(window)),
        window_width: T.int32,
        width: T.int32,
        window_stride: T.int64,
        compressed_stride: T.int64,
        shift: T.int64,
    ) -> None:
        with T.Kernel(T.ceildiv(num_indices, THREADS), threads=THREADS) as block:
            place = T.alloc_var("int32")
            place = block * THREADS + T.get_thread_binding()
            if place < num_indices:
                row, column = T.alloc_var("int32"), T.alloc_var("int32")
                row = T.truncdiv(place, width)
                column = place - row * width
                index = T.alloc_var("int64")
                if column < window_width:
                    index = T.cast(window_indices[row * window_stride + column], "int64")
                else:
                    index = T.cast(compressed_indices[row * compressed_stride + column - window_width], "int64")
                    index = T.if_then_else(index < 0, T.int64(-1), index + shift)
                indices[place] = T.cast(index, name_of(window))

    return compiled(cat_kv_indices, architecture)


@functools.cache
def segments_kernel(dtype: torch.dtype, architecture: str = ARCHITECTURE) -> Any:
    """The compiled kernel of `segments_to_slots`."""
    T = tilelang().language
    num_segments, num_rows = T.dynamic("m"), T.dynamic("num_rows")

    @T.prim_func
    def segments_to_slots(
        segments: T.Tensor((num_segments, 4), name_of(dtype)),
        slots: T.Tensor((num_rows,), "int64"),
        entries: T.int32,
    ) -> None:
        with T.Kernel(T.ceildiv(num_rows, THREADS), threads=THREADS) as block:
            row = T.alloc_var("int32")
            row = block * THREADS + T.get_thread_binding()
            if row < num_rows:
                # The last segment whose destination is at or before the row; of empty ones, those before it.
                low, high, middle = T.alloc_var("int32"), T.alloc_var("int32"), T.alloc_var("int32")
                low = 0
                high = num_segments
                while low + 1 < high:
                    middle = T.shift_right(low + high, 1)
                    if segments[middle, 3] <= row:
                        low = middle
                    else:
                        high = middle
                entry, slot = T.alloc_var("int64"), T.alloc_var("int64")
                entry = T.cast(segments[low, 1], "int64") + row - T.cast(segments[low, 3], "int64")
                slot = -1
                if segments[low, 0] >= 0 and entry >= segments[low, 1] and entry < segments[low, 2]:
                    slot = T.cast(segments[low, 0], "int64") * entries + entry
                slots[row] = slot

    return compiled(segments_to_slots, architecture)


def expand_window_reads(window_reads: Tensor, window_size: int, ring_length: int) -> Tensor:
    """As the reference."""
    check_window_reads(window_reads, window_size, ring_length)
    check_device(window_reads=window_reads)
    return _expanded(window_reads, window_size, functools.partial(window_reads_kernel, window_size, ring_length))


def expand_window_pivots(pivots: Tensor, width: int) -> Tensor:
    """As the reference."""
    check_pivots(pivots, width)
    check_device(pivots=pivots)
    return _expanded(pivots, width, functools.partial(window_pivots_kernel, width))


def _expanded(rows: Tensor, width: int, kernel_for: Callable[[torch.dtype], Any]) -> Tensor:
    indices = torch.empty((rows.shape[0], width), dtype=torch.int32, device=rows.device)
    if indices.numel():
        with torch.cuda.device(indices.device):
            kernel_for(rows.dtype)(rows.contiguous(), indices.view(-1))
    return indices


def cat_kv_indices(window_indices: Tensor, compressed_indices: Tensor, shift: int) -> Tensor:
    """As the reference."""
    check_kv_indices(window_indices, compressed_indices, shift)
    check_device(window_indices=window_indices, compressed_indices=compressed_indices)
    rows, window_width = window_indices.shape
    width = window_width + compressed_indices.shape[1]
    indices = window_indices.new_empty((rows, width))
    if indices.numel():
        window, compressed = _with_elements(window_indices), _with_elements(compressed_indices)
        kernel = cat_indices_kernel(window.dtype, compressed.dtype)
        with torch.cuda.device(indices.device):
            flat = (span(window), span(compressed), indices.view(-1))
            kernel(*flat, window_width, width, window.stride(0), compressed.stride(0), shift)
    return indices


def segments_to_slots(segments: Tensor, num_rows: int, entries: int) -> Tensor:
    """As the reference, of segments that are right; a row that none of them covers becomes -1."""
    check_segments(segments, num_rows, entries)
    check_device(segments=segments)
    slots = torch.empty(num_rows, dtype=torch.int64, device=segments.device)
    if segments.shape[0] == 0:
        return slots.fill_(-1)
    if num_rows:
        kernel = segments_kernel(segments.dtype)
        with torch.cuda.device(slots.device):
            kernel(segments.contiguous(), slots, entries)
    return slots


def _with_elements(indices: Tensor) -> Tensor:
    """indices [T, K] with adjacent columns; one element that nobody reads where there is none."""
    if indices.shape[1] == 0:
        return indices.new_empty((1, 1)).expand(indices.shape[0], 1)
    return indices if indices.stride(1) == 1 else indices.contiguous()


IMPLEMENTATIONS = tuple(
    implementation(function)
    for function in (expand_window_reads, expand_window_pivots, cat_kv_indices, segments_to_slots)
)

COMPILE_EXAMPLES = {
    "expand_window_reads": functools.partial(window_reads_kernel, 128, 134, torch.int32),
    "expand_window_pivots": functools.partial(window_pivots_kernel, 128, torch.int32),
    "cat_kv_indices": functools.partial(cat_indices_kernel, torch.int32, torch.int32),
    "segments_to_slots": functools.partial(segments_kernel, torch.int32),
}
"""Kernels at the dimensions of the released model, by name; each takes an architecture."""
