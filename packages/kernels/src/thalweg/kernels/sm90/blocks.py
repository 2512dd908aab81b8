"""Candidate blocks on Hopper: the best score of each, how many entries chosen ones have, and ids found in them."""
# Without postponed annotations: those of the kernel are its arguments' types to TileLang.
# mypy: disable-error-code="valid-type, name-defined, untyped-decorator"

import functools
from collections.abc import Callable
from typing import Any

import torch
from torch import Tensor

from thalweg.interfaces import ConfigError
from thalweg.kernels.reference.indexer import BF16_MAX
from thalweg.kernels.reference.numerics import check_count, check_shape
from thalweg.kernels.sm90.declared import implementation
from thalweg.kernels.sm90.library import ARCHITECTURE, compiled, tilelang
from thalweg.kernels.sm90.tensors import check_device, check_integers, name_of, span

THREADS = 256
WARP = 32
ROW_THREADS = 1024
"""Of a block that adds up a row: its reads wait together."""
VECTOR = 8
"""bfloat16 elements that are read at once where rows allow it."""
ALIGNMENT = 64
"""Rows of block scores start so many elements apart, or a multiple, for those who read them in vectors."""


@functools.cache
def block_scores_kernel(
    block_size: int, vector: int, visible_dtype: torch.dtype, architecture: str = ARCHITECTURE
) -> Any:
    """The compiled kernel; rows of scores start at multiples of `vector` elements, which divides block_size."""
    T = tilelang().language
    num_rows = T.dynamic("num_rows")
    num_scores, num_best = T.dynamic("num_scores", "int64"), T.dynamic("num_best", "int64")

    @T.prim_func
    def block_scores(
        scores: T.Tensor((num_scores,), "bfloat16"),
        visible: T.Tensor((num_rows,), name_of(visible_dtype)),
        best: T.Tensor((num_best,), "bfloat16"),
        row_vectors: T.int64,
        best_stride: T.int64,
        entries: T.int32,
        blocks: T.int32,
    ) -> None:
        with T.Kernel(num_rows * T.ceildiv(blocks, THREADS), threads=THREADS) as place:
            blocks_of_row, row, block = T.alloc_var("int32"), T.alloc_var("int32"), T.alloc_var("int32")
            blocks_of_row = (blocks + THREADS - 1) // THREADS
            row = T.truncdiv(place, blocks_of_row)
            block = (place - row * blocks_of_row) * THREADS + T.get_thread_binding()
            seen = T.alloc_var("int32")
            seen = T.cast(T.min(visible[row], entries), "int32")
            last = T.alloc_var("int32")
            last = T.truncdiv(seen + block_size - 1, block_size) - 1
            # The last visible block is infinity whatever it holds, so those that are read are whole.
            value = T.alloc_var("float32")
            value = T.if_then_else(block == last, T.infinity("float32"), -T.infinity("float32"))
            if block < last:
                part = T.alloc_local((vector,), "bfloat16")
                for i in T.unroll(block_size // vector):
                    start = row * row_vectors + T.cast(block, "int64") * (block_size // vector) + i
                    for j in T.vectorized(vector):
                        part[j] = scores[start * vector + j]
                    for j in T.unroll(vector):
                        value = T.max(value, T.cast(part[j], "float32"))
                value = T.min(value, BF16_MAX)
            if block < blocks:
                best[row * best_stride + block] = T.cast(value, "bfloat16")

    return compiled(block_scores, architecture)


@functools.cache
def compact_lengths_kernel(
    block_size: int, block_dtype: torch.dtype, visible_dtype: torch.dtype, architecture: str = ARCHITECTURE
) -> Any:
    """The compiled kernel: a block adds up a row."""
    T = tilelang().language
    num_rows, num_blocks = T.dynamic("num_rows"), T.dynamic("num_blocks", "int64")
    warps = ROW_THREADS // WARP

    @T.prim_func
    def compact_lengths(
        blocks: T.Tensor((num_blocks,), name_of(block_dtype)),
        visible: T.Tensor((num_rows,), name_of(visible_dtype)),
        lengths: T.Tensor((num_rows,), "int32"),
        row_stride: T.int64,
        listed: T.int32,
    ) -> None:
        with T.Kernel(num_rows, threads=ROW_THREADS) as row:
            sums = T.alloc_shared((warps,), "int32")
            thread, total = T.get_thread_binding(), T.alloc_var("int32")
            total = 0
            for turn in T.serial(T.ceildiv(listed, ROW_THREADS)):
                column = turn * ROW_THREADS + thread
                if column < listed:
                    block = T.cast(blocks[row * row_stride + column], "int64")
                    inside = T.min(T.max(visible[row] - block * block_size, T.int64(0)), T.int64(block_size))
                    total = total + T.if_then_else(block < 0, 0, T.cast(inside, "int32"))
            for step in T.unroll(5):
                total = total + T.shfl_xor(total, 16 >> step)
            if thread % WARP == 0:
                sums[thread // WARP] = total
            T.sync_threads()
            if thread < warps:
                total = sums[thread]
                for step in T.unroll(5):
                    total = total + T.shfl_xor(total, 16 >> step)
                if thread == 0:
                    lengths[row] = total

    return compiled(compact_lengths, architecture)


@functools.cache
def restore_kernel(
    block_size: int, compact_dtype: torch.dtype, block_dtype: torch.dtype, offset_dtype: torch.dtype | None,
    architecture: str = ARCHITECTURE,
) -> Any:  # fmt: skip
    """The compiled kernel; offset_dtype: None where there is no offset, and another tensor in its place."""
    T = tilelang().language
    num_ids, num_blocks = T.dynamic("num_ids"), T.dynamic("num_blocks", "int64")
    num_compact, num_offsets = T.dynamic("num_compact", "int64"), T.dynamic("num_offsets", "int64")
    has_offset = offset_dtype is not None

    @T.prim_func
    def restore_indices(
        compact: T.Tensor((num_compact,), name_of(compact_dtype)),
        blocks: T.Tensor((num_blocks,), name_of(block_dtype)),
        offset: T.Tensor((num_offsets,), name_of(offset_dtype or block_dtype)),
        ids: T.Tensor((num_ids,), "int32"),
        compact_stride: T.int64,
        block_stride: T.int64,
        listed: T.int32,
        k: T.int32,
    ) -> None:
        with T.Kernel(T.ceildiv(num_ids, THREADS), threads=THREADS) as group:
            place = T.alloc_var("int32")
            place = group * THREADS + T.get_thread_binding()
            if place < num_ids:
                row, index = T.alloc_var("int32"), T.alloc_var("int64")
                row = T.truncdiv(place, k)
                index = T.cast(compact[row * compact_stride + place - row * k], "int64")
                slot, block = T.alloc_var("int64"), T.alloc_var("int64")
                slot = T.truncdiv(index, block_size)
                block = -1
                if index >= 0 and slot < listed:
                    block = T.cast(blocks[row * block_stride + slot], "int64")
                restored = T.alloc_var("int64")
                restored = -1
                if block >= 0:
                    restored = block * block_size + index - slot * block_size
                    if has_offset:
                        restored = restored + offset[row]
                ids[place] = T.cast(restored, "int32")

    return compiled(restore_indices, architecture)


def block_scores(scores: Tensor, visible: Tensor, block_size: int) -> Tensor:
    """As the reference, of bfloat16 scores without NaN."""
    check_shape("scores", scores, ("n", "S"))
    rows, entries = scores.shape
    check_shape("visible", visible, (rows,))
    check_count("block_size", block_size, 1)
    if scores.dtype != torch.bfloat16 or scores.stride(1) != 1:
        raise ConfigError(
            f"scores are {scores.dtype} with strides {list(scores.stride())}; bfloat16, those of a row next to each "
            "other, is required"
        )
    check_device(scores=scores, visible=visible)
    check_integers("visible", visible)
    blocks = -(-entries // block_size)
    stride = -(-blocks // ALIGNMENT) * ALIGNMENT
    best = torch.empty(rows, stride, dtype=torch.bfloat16, device=scores.device)
    if 0 not in best.shape:
        is_aligned = scores.stride(0) % VECTOR == 0 and scores.data_ptr() % (2 * VECTOR) == 0
        vector = VECTOR if is_aligned and block_size % VECTOR == 0 else 1
        kernel = block_scores_kernel(block_size, vector, visible.dtype)
        with torch.cuda.device(scores.device):
            kernel(
                span(scores), visible.contiguous(), best.view(-1), scores.stride(0) // vector, stride, entries, blocks
            )
    return best[:, :blocks]


def compact_lengths(blocks: Tensor, visible: Tensor, block_size: int) -> Tensor:
    """As the reference."""
    check_shape("blocks", blocks, ("n", "C"))
    check_shape("visible", visible, (blocks.shape[0],))
    check_count("block_size", block_size, 1)
    _check_rows(blocks=blocks)
    check_device(blocks=blocks, visible=visible)
    check_integers("visible", visible)
    lengths = torch.empty(blocks.shape[0], dtype=torch.int32, device=blocks.device)
    if blocks.shape[1] == 0:
        return lengths.zero_()
    if 0 not in blocks.shape:
        kernel = compact_lengths_kernel(block_size, blocks.dtype, visible.dtype)
        with torch.cuda.device(blocks.device):
            kernel(span(blocks), visible.contiguous(), lengths, blocks.stride(0), blocks.shape[1])
    return lengths


def restore_indices(compact: Tensor, blocks: Tensor, block_size: int, offset: Tensor | None = None) -> Tensor:
    """As the reference."""
    check_shape("blocks", blocks, ("n", "C"))
    rows, listed = blocks.shape
    check_shape("compact", compact, (rows, "k"))
    check_count("block_size", block_size, 1)
    _check_rows(compact=compact, blocks=blocks)
    check_device(compact=compact, blocks=blocks)
    if offset is not None:
        check_shape("offset", offset, (rows,))
        check_integers("offset", offset)
        check_device(blocks=blocks, offset=offset)
    ids = torch.empty(compact.shape, dtype=torch.int32, device=compact.device)
    if listed == 0:
        return ids.fill_(-1)
    if 0 not in compact.shape:
        kernel = restore_kernel(block_size, compact.dtype, blocks.dtype, None if offset is None else offset.dtype)
        flat = span(blocks)
        with torch.cuda.device(compact.device):
            kernel(
                span(compact),
                flat,
                flat if offset is None else offset.contiguous(),
                ids.view(-1),
                compact.stride(0),
                blocks.stride(0),
                listed,
                compact.shape[1],
            )
    return ids


def _check_rows(**tensors: Tensor) -> None:
    """Raise ConfigError unless these hold integers, those of a row next to each other."""
    for name, tensor in tensors.items():
        check_integers(name, tensor)
        if tensor.stride(1) != 1:
            raise ConfigError(f"{name} has strides {list(tensor.stride())}; a last stride of 1 is required")


IMPLEMENTATIONS = (
    implementation(block_scores),
    implementation(compact_lengths),
    implementation(restore_indices),
)
COMPILE_EXAMPLES: dict[str, Callable[[str], Any]] = {
    "block_scores": functools.partial(block_scores_kernel, 8, VECTOR, torch.int32),
    "compact_lengths": functools.partial(compact_lengths_kernel, 8, torch.int32, torch.int32),
    "restore_indices": functools.partial(restore_kernel, 8, torch.int32, torch.int32, None),
}
"""Kernels by name, to be compiled for an architecture without a GPU."""
