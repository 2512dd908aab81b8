"""The kernel of bfloat16 linears for few rows and small weights on Hopper."""
# Without postponed annotations: those of the kernel are its arguments' types to TileLang.
# mypy: disable-error-code="valid-type, name-defined, untyped-decorator"

import functools
from typing import Any

import torch

from thalweg.kernels.sm90.cuda_source import cuda_source
from thalweg.kernels.sm90.library import ARCHITECTURE, compiled, tilelang
from thalweg.kernels.sm90.row_products import BLOCK_ROWS, TILE, Sharing

NAMES = {torch.bfloat16: ("bfloat16", "__nv_bfloat16"), torch.float32: ("float32", "float")}
"""Of result types, to TileLang and to C++."""


@functools.cache
def bf16_rows_kernel(
    shared_out: Sharing, groups_at_once: int, out_dtype: torch.dtype, architecture: str = ARCHITECTURE
) -> Any:
    """The compiled kernel for few rows. groups_at_once: groups of 32 columns per load, which divide the depth."""
    T = tilelang().language
    n, elements, width, depth = T.dynamic("n"), T.dynamic("elements", "int64"), T.dynamic("width"), T.dynamic("depth")
    s, (out_name, c_name) = shared_out, NAMES[out_dtype]
    name = f"thalweg::bf16_rows<{s.blocks}, {s.down}, {s.across}, {s.splits}, {groups_at_once}, {c_name}>"
    text = cuda_source("bf16_rows.cuh")

    @T.prim_func
    def bf16_rows(
        x: T.Tensor((elements,), "bfloat16"),
        weight: T.Tensor((width, depth), "bfloat16"),
        out: T.Tensor((n, width), out_name),
        x_stride: T.int32,
    ) -> None:
        with T.Kernel(
            T.ceildiv(width, TILE * s.down) * s.splits,
            T.ceildiv(n, BLOCK_ROWS * s.blocks),
            threads=s.threads,
            cluster_dims=(s.splits, 1, 1),
        ) as (place, column):
            T.import_source(text)
            partials = T.alloc_shared((s.partial_floats,), "float32")
            T.call_extern(
                "handle",
                name,
                T.address_of(x[0]),
                T.address_of(weight[0, 0]),
                T.address_of(out[0, 0]),
                T.address_of(partials[0]),
                n,
                x_stride,
                depth // TILE,
                width,
                place // s.splits,
                place % s.splits,
                column,
            )

    return compiled(bf16_rows, architecture)
