"""The trunk around a sub-layer on Hopper: reading it, and advancing it together with the next reading.

A block has one row. Each thread holds its columns of all streams, so that the new trunk is read by the next sub-layer
while it is still in registers: every tensor passes the memory once.
"""
# Without postponed annotations: those of the kernel are its arguments' types to TileLang.
# mypy: disable-error-code="valid-type, name-defined, untyped-decorator"

import functools
from collections.abc import Callable
from typing import Any

import torch
from torch import Tensor

from thalweg.kernels.native_formats import HcMix, ReadRows
from thalweg.kernels.reference.fused_rows import check_rows
from thalweg.kernels.sm90.declared import implementation
from thalweg.kernels.sm90.hyper_connections_parts import (
    load_streams,
    norm_and_store,
    weighted_streams,
)
from thalweg.kernels.sm90.library import ARCHITECTURE, compiled, tilelang
from thalweg.kernels.sm90.row_casts import empty_mxfp8
from thalweg.kernels.sm90.row_parts import (
    GROUP,
    check_contiguous,
    check_weight,
    row_shape,
)
from thalweg.kernels.sm90.tensors import check_device, name_of

MOST_WARPS = 10
"""Of a row. Fewer threads with more columns each leave registers for two rows on a multiprocessor."""
BLOCKS = 2
"""Of a multiprocessor, so that one loads while another one waits for its sum."""


@functools.cache
def read_kernel(streams: int, width: int, weight_type: str, architecture: str = ARCHITECTURE) -> Any:
    """The compiled kernel of hc_read."""
    T = tilelang().language
    shape = row_shape("trunk", width, MOST_WARPS)
    vector, rounds, num_rows = shape.vector, shape.rounds, T.dynamic("n")
    load, add_up = load_streams(streams, vector), weighted_streams(streams, vector)
    finish = norm_and_store(shape, weight_type)

    @T.prim_func
    def hc_read(
        trunk: T.Tensor((num_rows, streams, width), "bfloat16"),
        read: T.Tensor((num_rows, streams), "float32"),
        weight: T.Tensor((width,), weight_type),
        rows: T.Tensor((num_rows, width), "bfloat16"),
        codes: T.Tensor((num_rows, width), "float8_e4m3fn"),
        scales: T.Tensor((num_rows, width // GROUP), "uint8"),
        eps: T.float32,
    ) -> None:
        with T.Kernel(T.ceildiv(num_rows, shape.rows), threads=shape.threads) as block:
            row = block * shape.rows + T.get_thread_binding() // shape.row_threads
            place = T.get_thread_binding() % shape.row_threads
            held = T.alloc_local((streams * vector,), "bfloat16")
            total = T.alloc_local((vector,), "float32")
            mixed = T.alloc_local((rounds * vector,), "bfloat16")
            if row < num_rows:
                for k in T.unroll(rounds):
                    load(trunk, row, (place + k * shape.row_threads) * vector, held)
                    add_up(held, read, row, total)
                    for i in T.vectorized(vector):
                        mixed[k * vector + i] = total[i]
                finish(mixed, weight, eps, rows, codes, scales, row, place)

    return compiled(hc_read, architecture)


@functools.cache
def collapse_kernel(streams: int, width: int, architecture: str = ARCHITECTURE) -> Any:
    """The compiled kernel of hc_collapse."""
    T = tilelang().language
    shape = row_shape("x", width)
    vector, num_rows = shape.vector, T.dynamic("n")
    load, add_up = load_streams(streams, vector), weighted_streams(streams, vector)

    @T.prim_func
    def hc_collapse(
        trunk: T.Tensor((num_rows, streams, width), "bfloat16"),
        read: T.Tensor((num_rows, streams), "float32"),
        rows: T.Tensor((num_rows, width), "bfloat16"),
    ) -> None:
        with T.Kernel(T.ceildiv(num_rows, shape.rows), threads=shape.threads) as block:
            row = block * shape.rows + T.get_thread_binding() // shape.row_threads
            place = T.get_thread_binding() % shape.row_threads
            held = T.alloc_local((streams * vector,), "bfloat16")
            total = T.alloc_local((vector,), "float32")
            if row < num_rows:
                for k in T.unroll(shape.rounds):
                    load(trunk, row, (place + k * shape.row_threads) * vector, held)
                    add_up(held, read, row, total)
                    for i in T.vectorized(vector):
                        rows[row, (place + k * shape.row_threads) * vector + i] = total[i]

    return compiled(hc_collapse, architecture)


@functools.cache
def advance_kernel(streams: int, width: int, weight_type: str, architecture: str = ARCHITECTURE) -> Any:
    """The compiled kernel of hc_advance."""
    T = tilelang().language
    shape = row_shape("trunk", width, MOST_WARPS)
    vector, rounds, num_rows = shape.vector, shape.rounds, T.dynamic("n")
    load, add_up = load_streams(streams, vector), weighted_streams(streams, vector)
    finish = norm_and_store(shape, weight_type)

    @T.prim_func
    def hc_advance(
        trunk: T.Tensor((num_rows, streams, width), "bfloat16"),
        output: T.Tensor((num_rows, width), "bfloat16"),
        read: T.Tensor((num_rows, streams), "float32"),
        write: T.Tensor((num_rows, streams), "float32"),
        carry: T.Tensor((num_rows, streams, streams), "float32"),
        weight: T.Tensor((width,), weight_type),
        advanced: T.Tensor((num_rows, streams, width), "bfloat16"),
        rows: T.Tensor((num_rows, width), "bfloat16"),
        codes: T.Tensor((num_rows, width), "float8_e4m3fn"),
        scales: T.Tensor((num_rows, width // GROUP), "uint8"),
        eps: T.float32,
    ) -> None:
        with T.Kernel(T.ceildiv(num_rows, shape.rows), threads=shape.threads) as block:
            row = block * shape.rows + T.get_thread_binding() // shape.row_threads
            place = T.get_thread_binding() % shape.row_threads
            held = T.alloc_local((streams * vector,), "bfloat16")
            added = T.alloc_local((vector,), "bfloat16")
            T.annotate_min_blocks_per_sm(BLOCKS)
            fresh = T.alloc_local((streams * vector,), "bfloat16")
            stream = T.alloc_local((vector,), "float32")
            total = T.alloc_local((vector,), "float32")
            mixed = T.alloc_local((rounds * vector,), "bfloat16")
            if row < num_rows:
                for k in T.unroll(rounds):
                    load(trunk, row, (place + k * shape.row_threads) * vector, held)
                    for i in T.vectorized(vector):
                        added[i] = output[row, (place + k * shape.row_threads) * vector + i]
                    for s in T.unroll(streams):
                        for i in T.unroll(vector):
                            stream[i] = write[row, s] * T.cast(added[i], "float32")
                        for j in T.unroll(streams):
                            for i in T.unroll(vector):
                                stream[i] = stream[i] + carry[row, j, s] * T.cast(held[j * vector + i], "float32")
                        for i in T.vectorized(vector):
                            fresh[s * vector + i] = stream[i]
                        for i in T.vectorized(vector):
                            advanced[row, s, (place + k * shape.row_threads) * vector + i] = fresh[s * vector + i]
                    add_up(fresh, read, row, total)
                    for i in T.vectorized(vector):
                        mixed[k * vector + i] = total[i]
                finish(mixed, weight, eps, rows, codes, scales, row, place)

    return compiled(hc_advance, architecture)


def hc_read(trunk: Tensor, read: Tensor, weight: Tensor, eps: float) -> ReadRows:
    """As the reference."""
    _check_trunk(trunk, read=read, weight=weight)
    n, streams, width = trunk.shape
    check_rows("read", read, torch.float32, (n, streams))
    check_weight("weight", weight, (width,))
    result = _empty_read(n, width, trunk.device)
    if n:
        with torch.cuda.device(trunk.device):
            kernel = read_kernel(streams, width, name_of(weight.dtype))
            kernel(trunk, read, weight, *_as_float8(result), eps)
    return result


def hc_collapse(x: Tensor, pre: Tensor) -> Tensor:
    """As the reference, for x bfloat16 [n, m, h] and pre float32 [n, m]."""
    _check_trunk(x, pre=pre)
    n, streams, width = x.shape
    check_rows("pre", pre, torch.float32, (n, streams))
    rows = torch.empty(n, width, dtype=torch.bfloat16, device=x.device)
    if n:
        with torch.cuda.device(x.device):
            collapse_kernel(streams, width)(x, pre, rows)
    return rows


def hc_advance(trunk: Tensor, output: Tensor, mix: HcMix, weight: Tensor, eps: float) -> tuple[Tensor, ReadRows]:
    """As the reference."""
    _check_trunk(
        trunk,
        output=output,
        next_read=mix.next_read,
        write=mix.write,
        carry=mix.carry,
        weight=weight,
    )
    n, streams, width = trunk.shape
    check_rows("output", output, torch.bfloat16, (n, width))
    check_rows("next_read", mix.next_read, torch.float32, (n, streams))
    check_rows("write", mix.write, torch.float32, (n, streams))
    check_rows("carry", mix.carry, torch.float32, (n, streams, streams))
    check_weight("weight", weight, (width,))
    advanced, result = torch.empty_like(trunk), _empty_read(n, width, trunk.device)
    if n:
        with torch.cuda.device(trunk.device):
            kernel = advance_kernel(streams, width, name_of(weight.dtype))
            kernel(trunk, output, *mix, weight, advanced, *_as_float8(result), eps)
    return advanced, result


def _check_trunk(trunk: Tensor, **others: Tensor) -> None:
    check_rows("trunk", trunk, torch.bfloat16, ("n", "m", "h"))
    check_contiguous(trunk=trunk, **others)
    check_device(trunk=trunk, **others)
    row_shape("trunk", trunk.shape[2])


def _empty_read(n: int, width: int, device: torch.device) -> ReadRows:
    rows = torch.empty(n, width, dtype=torch.bfloat16, device=device)
    return ReadRows(rows, *empty_mxfp8(n, width, device))


def _as_float8(result: ReadRows) -> tuple[Tensor, Tensor, Tensor]:
    return result.rows, result.codes.view(torch.float8_e4m3fn), result.scales


IMPLEMENTATIONS = tuple(implementation(function) for function in (hc_read, hc_collapse, hc_advance))

COMPILE_EXAMPLES: dict[str, Callable[[str], Any]] = {
    "hc_read": lambda architecture: read_kernel(4, 5120, "bfloat16", architecture),
    "hc_collapse": lambda architecture: collapse_kernel(4, 5120, architecture),
    "hc_advance": lambda architecture: advance_kernel(4, 5120, "bfloat16", architecture),
}
