"""Restricting what may be drawn by a bitmask over the vocabulary, on Hopper.

A warp reads 32 words of a mask, one per lane. It then takes one word after the other: lane i looks at bit i, and writes
if the token is forbidden. So a word becomes one write of at most 32 neighbouring logits, which needs no alignment, and
logits are never read. Words that are all ones cost nothing but being read.
"""
# Without postponed annotations: those of the kernel are its arguments' types to TileLang.
# mypy: disable-error-code="valid-type, name-defined, untyped-decorator"

import functools
from collections.abc import Callable
from typing import Any

import torch
from torch import Tensor

from thalweg.interfaces import ConfigError
from thalweg.kernels.reference.bitmask import WORD_BITS, check_token_bitmask
from thalweg.kernels.sm90.declared import implementation
from thalweg.kernels.sm90.library import ARCHITECTURE, compiled, tilelang
from thalweg.kernels.sm90.tensors import check_device, name_of, span

WARP = 32
WARPS = 8
"""Warps of a block. The words of a block go round among them, so that they write next to each other."""
BLOCK_WORDS = WARP * WARPS


@functools.cache
def token_bitmask_kernel(dtype: torch.dtype, architecture: str = ARCHITECTURE) -> Any:
    """The compiled kernel for logits of a dtype."""
    T = tilelang().language
    values = name_of(dtype)
    num_logits, num_bits, num_masks = T.dynamic("num_logits", "int64"), T.dynamic("num_bits", "int64"), T.dynamic("M")

    @T.prim_func
    def apply_token_bitmask(
        logits: T.Tensor((num_logits,), values),
        bitmask: T.Tensor((num_bits,), "int32"),
        rows: T.Tensor((num_masks,), "int64"),
        row_stride: T.int64,
        mask_stride: T.int64,
        num_rows: T.int64,
        vocabulary: T.int32,
        num_words: T.int32,
    ) -> None:
        with T.Kernel(num_masks * T.ceildiv(num_words, BLOCK_WORDS), threads=WARP * WARPS) as place:
            num_blocks = T.alloc_var("int32")
            num_blocks = (num_words + BLOCK_WORDS - 1) // BLOCK_WORDS
            mask = T.alloc_var("int32")
            mask = T.truncdiv(place, num_blocks)
            lane = T.get_thread_binding() % WARP
            first = T.alloc_var("int32")
            first = (place - mask * num_blocks) * BLOCK_WORDS + T.get_thread_binding() // WARP
            row = rows[mask]
            allowed = T.alloc_var("int32")
            allowed = -1
            if first + lane * WARPS < num_words:
                allowed = bitmask[mask * mask_stride + first + lane * WARPS]
            if row >= 0 and row < num_rows and T.any_sync(allowed != -1) != 0:
                start = T.alloc_var("int64")
                start = row * row_stride + first * WORD_BITS + lane
                left = T.alloc_var("int32")
                left = vocabulary - first * WORD_BITS - lane
                for step in T.unroll(WARP):
                    word = T.shfl_sync(allowed, step)
                    if T.bitwise_and(T.shift_right(word, lane), 1) == 0 and step * WARPS * WORD_BITS < left:
                        logits[start + step * WARPS * WORD_BITS] = -T.infinity(values)

    return compiled(apply_token_bitmask, architecture)


def apply_token_bitmask(logits: Tensor, bitmask: Tensor, rows: Tensor) -> None:
    """As the reference, in one launch. Rows of logits, and those of bitmask, may lie apart; a row itself may not.

    A row beyond the last one, which is an error of the caller, is left out.
    """
    check_token_bitmask(logits, bitmask, rows)
    for name, tensor in (("logits", logits), ("bitmask", bitmask)):
        if tensor.stride(1) != 1:
            raise ConfigError(f"{name} has strides {list(tensor.stride())}; a last stride of 1 is required")
    check_device(logits=logits, bitmask=bitmask, rows=rows)
    if 0 in (*logits.shape, *bitmask.shape):
        return
    kernel = token_bitmask_kernel(logits.dtype)
    with torch.cuda.device(logits.device):
        kernel(
            span(logits.detach()),
            span(bitmask),
            rows.long().contiguous(),
            logits.stride(0),
            bitmask.stride(0),
            *logits.shape,
            bitmask.shape[1],
        )


IMPLEMENTATIONS = (implementation(apply_token_bitmask),)

COMPILE_EXAMPLES: dict[str, Callable[[str], Any]] = {
    name_of(dtype): functools.partial(token_bitmask_kernel, dtype) for dtype in (torch.float32, torch.bfloat16)
}
