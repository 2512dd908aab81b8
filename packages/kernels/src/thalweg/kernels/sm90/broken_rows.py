"""Rows of logits that nothing can be drawn from, on Hopper: found, and made zeros, in one pass over them.

A float32 as the integer that its bits are, with all bits but the sign flipped where it is negative, keeps its order.
NaN counts as infinity here, so the largest such integer of a row tells whether its largest logit is a number.
"""
# Without postponed annotations: those of the kernel are its arguments' types to TileLang.
# mypy: disable-error-code="valid-type, name-defined, untyped-decorator"

import functools
import math
from collections.abc import Callable
from typing import Any

import torch
from torch import Tensor

from thalweg.interfaces import ConfigError
from thalweg.kernels.sm90.declared import implementation
from thalweg.kernels.sm90.library import ARCHITECTURE, compiled, tilelang
from thalweg.kernels.sm90.tensors import check_device, span

WARP = 32
THREADS = 1024
LOADS = 4
"""Of each thread at a time, to keep the memory busy from the few processors that have a row."""
MAGNITUDE = 0x7FFFFFFF
"""All bits but the sign."""
INFINITY = 0x7F800000
"""As an integer; minus infinity is -INFINITY - 1."""


@functools.cache
def broken_rows_kernel(vector: int, architecture: str = ARCHITECTURE) -> Any:
    """The compiled kernel for rows of whole vectors of so many numbers: `width` of them, `row_vectors` apart."""
    T = tilelang().language
    num_rows, num_vectors = T.dynamic("num_rows"), T.dynamic("num_vectors", "int64")

    @T.prim_func
    def clear_broken_rows(
        logits: T.Tensor((num_vectors, vector), "int32"),
        is_broken: T.Tensor((num_rows,), "uint8"),
        row_vectors: T.int64,
        width: T.int32,
    ) -> None:
        with T.Kernel(num_rows, threads=THREADS) as row:
            parts = T.alloc_shared((WARP,), "int32")
            bits = T.alloc_local((LOADS, vector), "int32")
            thread = T.get_thread_binding()
            start, column, largest = T.alloc_var("int64"), T.alloc_var("int32"), T.alloc_var("int32")
            start = row * row_vectors
            largest = -MAGNITUDE - 1
            column = thread
            while column < width:
                for load in T.unroll(LOADS):
                    # Beyond the end the first part is read once more.
                    ahead = T.if_then_else(column + load * THREADS < width, column + load * THREADS, column)
                    for i in T.vectorized(vector):
                        bits[load, i] = logits[start + ahead, i]
                for load in T.unroll(LOADS):
                    for i in T.unroll(vector):
                        value = bits[load, i]
                        flips = T.bitwise_and(T.shift_right(value, 31), MAGNITUDE)
                        is_nan = T.bitwise_and(value, MAGNITUDE) > INFINITY
                        largest = T.max(largest, T.if_then_else(is_nan, INFINITY, T.bitwise_xor(value, flips)))
                column = column + LOADS * THREADS
            for distance in T.unroll(5):
                largest = T.max(largest, T.shfl_xor(largest, 16 >> distance))
            if thread % WARP == 0:
                parts[thread // WARP] = largest
            T.sync_threads()
            largest = parts[thread % WARP]
            for distance in T.unroll(5):
                largest = T.max(largest, T.shfl_xor(largest, 16 >> distance))
            if largest >= INFINITY or largest <= -INFINITY - 1:
                column = thread
                while column < width:
                    for i in T.vectorized(vector):
                        logits[start + column, i] = 0
                    column = column + THREADS
                if thread == 0:
                    is_broken[row] = T.cast(1, "uint8")
            elif thread == 0:
                is_broken[row] = T.cast(0, "uint8")

    return compiled(clear_broken_rows, architecture)


def clear_broken_rows(logits: Tensor) -> Tensor:
    """As the reference, of float32. Rows may lie apart; a row itself may not."""
    if logits.dtype != torch.float32 or logits.dim() != 2 or (logits.stride(1) != 1 and logits.shape[1] > 1):
        raise ConfigError(
            f"logits are {logits.dtype} {list(logits.shape)} with strides {list(logits.stride())}; float32 [n, V], "
            "those of a row next to each other, is required"
        )
    check_device(logits=logits)
    num_rows, vocabulary = logits.shape
    is_broken = torch.empty(num_rows, dtype=torch.uint8, device=logits.device)
    if 0 in logits.shape:
        return is_broken.fill_(1).bool()
    vector = math.gcd(4, vocabulary, logits.stride(0), logits.data_ptr() // 4)
    with torch.cuda.device(logits.device):
        vectors = span(logits.detach()).view(torch.int32).view(-1, vector)
        broken_rows_kernel(vector)(vectors, is_broken, logits.stride(0) // vector, vocabulary // vector)
    return is_broken.view(torch.bool)


IMPLEMENTATIONS = (implementation(clear_broken_rows),)

COMPILE_EXAMPLES: dict[str, Callable[[str], Any]] = {"clear_broken_rows": functools.partial(broken_rows_kernel, 4)}
