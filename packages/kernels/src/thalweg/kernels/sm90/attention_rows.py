"""Attention over a list of rows of a bfloat16 table of keys on Hopper: what prefill computes.

A block takes up to 64 heads of one query row and its list in tiles of 64 keys, which are copied to shared memory row by
row and serve both as keys and as values.
"""
# Without postponed annotations: those of the kernel are its arguments' types to TileLang.
# mypy: disable-error-code="valid-type, name-defined, untyped-decorator"

import functools
import math
from typing import Any

import torch
from torch import Tensor

from thalweg.interfaces import ConfigError
from thalweg.kernels.reference.numerics import check_shape
from thalweg.kernels.registry import Implementation
from thalweg.kernels.sm90.attention_paged import COLUMNS, HEADS, LOWEST, SOURCE, THREADS, TILE, check_heads
from thalweg.kernels.sm90.cuda_source import cuda_source
from thalweg.kernels.sm90.library import ARCHITECTURE, compiled, tilelang
from thalweg.kernels.sm90.tensors import check_device, check_integers


@functools.cache
def sparse_attention_kernel(
    heads: int,
    dim: int,
    width: int,
    index_dtype: str = "int32",
    has_sink: bool = True,
    architecture: str = ARCHITECTURE,
) -> Any:
    """The compiled kernel for lists of `width` rows."""
    T = tilelang().language
    num_rows, num_keys = T.dynamic("num_rows"), T.dynamic("num_keys")
    columns = -(-dim // COLUMNS) * COLUMNS
    head_tiles = -(-heads // HEADS)

    @T.prim_func
    def sparse_attention(
        q: T.Tensor((num_rows, heads, dim), "bfloat16"),
        table: T.Tensor((num_keys, dim), "bfloat16"),
        indices: T.Tensor((num_rows, width), index_dtype),
        sink: T.Tensor((heads,), "float32"),
        out: T.Tensor((num_rows, heads, dim), "bfloat16"),
        scale: T.float32,
    ) -> None:
        with T.Kernel(num_rows, head_tiles, threads=THREADS) as (row, head_tile):
            T.import_source(cuda_source(SOURCE))
            queries = T.alloc_shared((HEADS, columns), "bfloat16")
            keys = T.alloc_shared((TILE, columns), "bfloat16")
            masses = T.alloc_shared((HEADS, TILE), "bfloat16")
            bias = T.alloc_shared((TILE,), "float32")
            logits = T.alloc_fragment((HEADS, TILE), "float32")
            sums = T.alloc_fragment((HEADS, columns), "float32")
            level = T.alloc_fragment((HEADS,), "float32")
            peak = T.alloc_fragment((HEADS,), "float32")
            decay = T.alloc_fragment((HEADS,), "float32")
            total = T.alloc_fragment((HEADS,), "float32")
            part = T.alloc_fragment((HEADS,), "float32")
            index, first_head = T.alloc_var("int32"), T.alloc_var("int32")
            exponent = T.alloc_var("float32")
            thread = T.get_thread_binding()
            key = thread // 32 * 8 + thread % 8
            first_head = head_tile * HEADS
            exponent = scale * math.log2(math.e)
            for i, j in T.Parallel(HEADS, columns):
                queries[i, j] = T.if_then_else(
                    first_head + i < heads and j < dim,
                    q[row, T.min(first_head + i, heads - 1), T.min(j, dim - 1)],
                    T.bfloat16(0),
                )
            if columns > dim:
                for i, j in T.Parallel(TILE, columns - dim):
                    keys[i, dim + j] = 0
            T.clear(sums)
            T.clear(total)
            T.fill(level, LOWEST)
            for tile in T.serial(-(-width // TILE)):
                listed = indices[row, T.min(tile * TILE + key, width - 1)]
                index = -1
                if tile * TILE + key < width and listed >= 0 and listed < num_keys:
                    index = T.cast(listed, "int32")
                T.sync_threads()
                T.call_extern(
                    "handle",
                    f"thalweg::copy_row<{dim}>",
                    T.address_of(keys[0, 0]),
                    T.address_of(table[T.max(index, 0), 0]),
                    index >= 0,
                )
                if thread % 32 // 8 == 0:
                    bias[key] = T.if_then_else(index >= 0, T.float32(0), -T.infinity("float32"))
                T.call_extern("handle", "thalweg::await_rows")
                T.fence_proxy_async()
                T.sync_threads()
                T.gemm(queries, keys, logits, transpose_B=True, clear_accum=True, policy=T.GemmWarpPolicy.FullCol)
                for i, j in T.Parallel(HEADS, TILE):
                    logits[i, j] = logits[i, j] * exponent + bias[j]
                T.reduce_max(logits, peak, dim=1, clear=True)
                for i in T.Parallel(HEADS):
                    peak[i] = T.max(peak[i], level[i])
                    decay[i] = T.exp2(level[i] - peak[i])
                    level[i] = peak[i]
                for i, j in T.Parallel(HEADS, TILE):
                    logits[i, j] = T.exp2(logits[i, j] - level[i])
                T.reduce_sum(logits, part, dim=1)
                for i in T.Parallel(HEADS):
                    total[i] = total[i] * decay[i] + part[i]
                for i, j in T.Parallel(HEADS, columns):
                    sums[i, j] *= decay[i]
                T.copy(logits, masses)
                T.fence_proxy_async()
                T.gemm(masses, keys, sums, policy=T.GemmWarpPolicy.FullCol)
            for i in T.Parallel(HEADS):
                decay[i] = 0
                if has_sink:
                    decay[i] = T.exp2(sink[T.min(first_head + i, heads - 1)] * math.log2(math.e) - level[i])
                decay[i] = T.if_then_else(total[i] > 0, 1 / (total[i] + decay[i]), T.float32(0))
            for i, j in T.Parallel(HEADS, columns):
                if first_head + i < heads and j < dim:
                    out[row, first_head + i, j] = T.cast(sums[i, j] * decay[i], "bfloat16")

    return compiled(sparse_attention, architecture, {"tl.disable_warp_specialized": True})


def sparse_attention(q: Tensor, keys: Tensor, indices: Tensor, sink: Tensor | None, scale: float) -> Tensor:
    """As the reference, for q and keys bfloat16, any number of heads of a multiple of 64 columns, up to 512.

    Roundings are those of paged_sparse_attention: of masses and of the output to bfloat16.
    """
    rows, heads, dim = q.shape
    check_heads(q)
    check_shape("keys", keys, ("S", dim))
    check_shape("indices", indices, (rows, "K"))
    check_integers("indices", indices)
    if keys.dtype != q.dtype:
        raise ConfigError(f"keys have dtype {keys.dtype}; q has {q.dtype}, and they must be the same")
    if sink is not None:
        check_shape("sink", sink, (heads,))
    out = torch.empty_like(q, memory_format=torch.contiguous_format)
    if 0 in (rows, indices.shape[1], keys.shape[0]):
        return out.zero_()
    check_device(q=q, keys=keys, indices=indices)
    dtype = str(indices.dtype).removeprefix("torch.")
    kernel = sparse_attention_kernel(heads, dim, indices.shape[1], dtype, sink is not None)
    sink = torch.empty(heads, device=q.device) if sink is None else sink.float().contiguous()
    with torch.cuda.device(q.device):
        kernel(q.contiguous(), keys.contiguous(), indices.contiguous(), sink, out, scale)
    return out


IMPLEMENTATIONS = (
    Implementation(
        op="sparse_attention",
        backend="sm90",
        provider="tilelang",
        function=sparse_attention,
        deterministic=True,
        batch_invariant=True,
        graph_safe=True,
    ),
)
COMPILE_EXAMPLES = {
    "sparse_attention": lambda architecture: sparse_attention_kernel(64, 512, 640, architecture=architecture)
}
"""Kernels at real dimensions, by name."""
