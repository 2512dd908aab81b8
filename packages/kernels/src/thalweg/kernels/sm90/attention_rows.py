"""Attention over listed rows of a bfloat16 table of keys on Hopper, as prefill has it; see cuda/attention_table.cuh."""
# Without postponed annotations: those of the kernel are its arguments' types to TileLang.
# mypy: disable-error-code="valid-type, name-defined, untyped-decorator"

import functools
from collections.abc import Callable
from typing import Any

import torch
from torch import Tensor

from thalweg.interfaces import ConfigError
from thalweg.kernels.reference.numerics import check_shape
from thalweg.kernels.sm90.attention_shell import HEADS, THREADS, TILE, check_queries, compiled_shell, shared_bytes
from thalweg.kernels.sm90.cuda_source import cuda_source
from thalweg.kernels.sm90.declared import implementation
from thalweg.kernels.sm90.library import ARCHITECTURE, tilelang
from thalweg.kernels.sm90.tensors import check_device, check_integers, name_of

MOST_KEYS = 1536
"""Of a list: the places of all of them are in shared memory."""


@functools.cache
def sparse_attention_kernel(
    heads: int, dim: int, width: int, index_dtype: str = "int32", architecture: str = ARCHITECTURE
) -> Any:
    """The compiled kernel for lists of `width` rows."""
    T = tilelang().language
    num_rows, num_keys = T.dynamic("num_rows"), T.dynamic("num_keys")
    num_bytes = shared_bytes(dim, -(-width // TILE))
    body = f"thalweg::table_attention<{dim}, {width}, {index_dtype}_t>"

    @T.prim_func
    def sparse_attention(
        q: T.Tensor((num_rows, heads, dim), "bfloat16"),
        table: T.Tensor((num_keys, dim), "bfloat16"),
        indices: T.Tensor((num_rows, width), index_dtype),
        sink: T.Tensor((heads,), "float32"),
        out: T.Tensor((num_rows, heads, dim), "bfloat16"),
        scale: T.float32,
    ) -> None:
        with T.Kernel(num_rows, -(-heads // HEADS), threads=THREADS) as (row, head_tile):
            T.import_source(cuda_source("attention_table.cuh"))
            memory = T.alloc_shared((num_bytes,), "uint8")
            T.call_extern(
                "handle",
                body,
                T.address_of(memory[0]),
                T.address_of(q[0, 0, 0]),
                T.address_of(table[0, 0]),
                T.address_of(indices[0, 0]),
                T.address_of(sink[0]),
                T.address_of(out[0, 0, 0]),
                row,
                head_tile * HEADS,
                heads,
                num_keys,
                scale,
            )

    return compiled_shell(sparse_attention, architecture)


def sparse_attention(q: Tensor, keys: Tensor, indices: Tensor, sink: Tensor | None, scale: float) -> Tensor:
    """As the reference, for q and keys bfloat16, heads of 64, 128, ... 512 columns, lists of at most 1536 indices.

    Roundings are those of paged_sparse_attention: of masses and of the output to bfloat16.
    """
    check_shape("q", q, ("n", "H", "D"))
    rows, heads, dim = q.shape
    check_queries(q, scale)
    check_shape("keys", keys, ("S", dim))
    check_shape("indices", indices, (rows, "K"))
    check_integers("indices", indices)
    if keys.dtype != q.dtype:
        raise ConfigError(f"keys have dtype {keys.dtype}; q has {q.dtype}, and they must be the same")
    if sink is not None:
        check_shape("sink", sink, (heads,))
    width = indices.shape[1]
    if width > MOST_KEYS:
        raise ConfigError(f"indices has {width} columns; at most {MOST_KEYS} are accepted")
    out = torch.empty_like(q, memory_format=torch.contiguous_format)
    if 0 in (rows, width, keys.shape[0]):
        return out.zero_()
    sink = torch.full((heads,), -torch.inf, device=q.device) if sink is None else sink.float().contiguous()
    check_device(q=q, keys=keys, indices=indices, sink=sink)
    kernel = sparse_attention_kernel(heads, dim, width, name_of(indices.dtype))
    with torch.cuda.device(q.device):
        kernel(q.contiguous(), keys.contiguous(), indices.contiguous(), sink, out, scale)
    return out


IMPLEMENTATIONS = (implementation(sparse_attention),)
COMPILE_EXAMPLES: dict[str, Callable[[str], Any]] = {
    "sparse_attention": lambda architecture: sparse_attention_kernel(64, 512, 640, architecture=architecture)
}
"""Kernels at real dimensions, by name."""
HOPPER_KERNELS = frozenset(COMPILE_EXAMPLES)
"""They use instructions that only sm_90a has."""
