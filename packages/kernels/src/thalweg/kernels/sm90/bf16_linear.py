"""Linears of bfloat16 rows by bfloat16 weights, on Hopper."""
# Without postponed annotations: those of the kernel are its arguments' types to TileLang.
# mypy: disable-error-code="valid-type, name-defined, untyped-decorator"

import functools
from collections.abc import Callable
from typing import Any

import torch
from torch import Tensor

from thalweg.interfaces import ConfigError
from thalweg.kernels.reference.packed_linear import check_bf16_linear
from thalweg.kernels.registry import Implementation
from thalweg.kernels.sm90.library import ARCHITECTURE, compiled, tilelang
from thalweg.kernels.sm90.row_parts import check_contiguous
from thalweg.kernels.sm90.row_products import BLOCK_ROWS, TILE, Sharing, groups_per_load, sharing, source
from thalweg.kernels.sm90.tensors import aligned_rows, check_device, span

VECTOR = 8
"""Elements that are loaded at once: rows must begin at a multiple of them."""
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
    text = source("row_products.cuh", "bf16_rows.cuh")

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


def bf16_linear(x: Tensor, weight: Tensor, out_dtype: torch.dtype = torch.bfloat16) -> Tensor:
    """As the reference. Rows of x may lie apart; K is a multiple of 32."""
    check_bf16_linear(x, weight, out_dtype)
    check_device(x=x, weight=weight)
    check_contiguous(weight=weight)
    (n, depth), width = x.shape, weight.shape[0]
    if depth == 0 or depth % TILE:
        raise ConfigError(f"x has {depth} columns; a positive multiple of {TILE} is required")
    out = torch.empty(n, width, dtype=out_dtype, device=x.device)
    if out.numel() == 0:
        return out
    x = aligned_rows(x, VECTOR)
    processors = torch.cuda.get_device_properties(x.device).multi_processor_count
    shared_out = sharing(n, -(-width // TILE), depth // TILE, processors)
    with torch.cuda.device(x.device):
        bf16_rows_kernel(shared_out, groups_per_load(depth // TILE), out_dtype)(span(x), weight, out, x.stride(0))
    return out


IMPLEMENTATIONS = (
    Implementation(
        op="bf16_linear",
        backend="sm90",
        provider="tilelang",
        function=bf16_linear,
        deterministic=True,
        graph_safe=True,
    ),
)

COMPILE_EXAMPLES: dict[str, Callable[[str], Any]] = {
    "bf16_linear 384 of 5120": lambda architecture: bf16_rows_kernel(
        sharing(8, 12, 160, 132), 4, torch.float32, architecture
    ),
}
