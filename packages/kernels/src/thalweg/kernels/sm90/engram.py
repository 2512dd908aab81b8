"""Engram on Hopper: hashes, rows of the table, and the gated value added to the trunk."""
# Without postponed annotations: those of the kernel are its arguments' types to TileLang.
# mypy: disable-error-code="valid-type, name-defined, untyped-decorator"

import functools
from collections.abc import Callable
from typing import Any

import torch
from torch import Tensor

from thalweg.interfaces import ConfigError
from thalweg.kernels.native_formats import Mxfp8Rows
from thalweg.kernels.reference.engram import GATE_FLOOR, check_hash
from thalweg.kernels.reference.fused_engram import check_table
from thalweg.kernels.reference.fused_rows import check_rows
from thalweg.kernels.sm90.declared import implementation
from thalweg.kernels.sm90.library import ARCHITECTURE, compiled, tilelang
from thalweg.kernels.sm90.row_casts import empty_mxfp8
from thalweg.kernels.sm90.row_parts import (
    GROUP,
    WARP,
    check_contiguous,
    check_weight,
    row_shape,
)
from thalweg.kernels.sm90.tensors import check_device, name_of, processors

THREADS = 128
LOOKUP_BYTES = 16
MOST_WARPS = 10
BLOCKS = 2


@functools.cache
def hash_kernel(sizes: int, columns: int, has_images: bool, architecture: str = ARCHITECTURE) -> Any:
    """The compiled kernel for windows of `sizes` ids and `columns` hashes of each."""
    T = tilelang().language
    heads, num_rows, num_flags = columns // (sizes - 1), T.dynamic("n"), T.dynamic("num_flags")

    @T.prim_func
    def engram_hash(
        ngram_ids: T.Tensor((num_rows, sizes), "int64"),
        multipliers: T.Tensor((sizes,), "int64"),
        primes: T.Tensor((columns,), "int64"),
        offsets: T.Tensor((columns,), "int64"),
        image_mask: T.Tensor((num_flags,), "bool"),
        rows: T.Tensor((num_rows, columns), "int64"),
    ) -> None:
        with T.Kernel(T.ceildiv(num_rows * columns, THREADS), threads=THREADS) as block:
            row, column = T.alloc_var("int32"), T.alloc_var("int32")
            row = (block * THREADS + T.get_thread_binding()) // columns
            column = block * THREADS + T.get_thread_binding() - row * columns
            if row < num_rows:
                mixed, left = T.alloc_var("int64"), T.alloc_var("int64")
                mixed = ngram_ids[row, 0] * multipliers[0]
                for size in T.unroll(sizes - 1):
                    if size <= column // heads:
                        mixed = T.bitwise_xor(mixed, ngram_ids[row, size + 1] * multipliers[size + 1])
                left = T.truncmod(mixed, primes[column])
                if left < 0:  # the remainder has the sign of the divisor, which is positive
                    left = left + primes[column]
                rows[row, column] = left + offsets[column]
                if has_images:  # noqa: SIM102 (known when the kernel is built; the other condition is the kernel's)
                    if image_mask[row]:
                        rows[row, column] = T.int64(-1)

    return compiled(engram_hash, architecture)


@functools.cache
def lookup_kernel(width: int, columns: int, architecture: str = ARCHITECTURE) -> Any:
    """The compiled kernel for table rows of `width` bytes, `columns` of them for each token."""
    T = tilelang().language
    num_rows, table_rows = T.dynamic("n"), T.dynamic("R", "int64")
    pieces, groups = width // LOOKUP_BYTES, width // GROUP
    per_row = columns * pieces

    @T.prim_func
    def engram_lookup(
        table: T.Tensor((table_rows, width), "uint8"),
        table_scales: T.Tensor((table_rows, groups), "uint8"),
        buckets: T.Tensor((num_rows, columns), "int64"),
        codes: T.Tensor((num_rows, columns * width), "uint8"),
        scales: T.Tensor((num_rows, columns * groups), "uint8"),
    ) -> None:
        with T.Kernel(T.ceildiv(num_rows * per_row, THREADS), threads=THREADS) as block:
            row, place, column, piece = (T.alloc_var("int32") for _ in range(4))
            row = (block * THREADS + T.get_thread_binding()) // per_row
            place = block * THREADS + T.get_thread_binding() - row * per_row
            column = place // pieces
            piece = place % pieces
            if row < num_rows:
                source = T.alloc_var("int64")
                source = T.max(buckets[row, column], T.int64(0))
                for i in T.vectorized(LOOKUP_BYTES):
                    codes[row, place * LOOKUP_BYTES + i] = table[source, piece * LOOKUP_BYTES + i]
                if piece < groups:
                    scales[row, column * groups + piece] = table_scales[source, piece]

    return compiled(engram_lookup, architecture)


@functools.cache
def update_kernel(
    streams: int, width: int, weight_type: str, has_images: bool, blocks: int, architecture: str = ARCHITECTURE
) -> Any:
    """The compiled kernel of engram_update; blocks: that run at the same time, each takes every blocks-th row.

    A block keeps the products of both weights in shared memory, and each thread a row's trunk and value in registers
    from the sums to their use.
    """
    T = tilelang().language
    shape = row_shape("trunk", width, MOST_WARPS, rows=1)
    vector, rounds, warps = shape.vector, shape.rounds, shape.warps
    held, sums = rounds * vector, 3 * streams
    num_rows, num_flags = T.dynamic("n"), T.dynamic("num_flags")

    @T.prim_func
    def engram_update(
        trunk: T.Tensor((num_rows, streams, width), "bfloat16"),
        projected: T.Tensor((num_rows, streams + 1, width), "bfloat16"),
        q_weight: T.Tensor((streams, width), weight_type),
        k_weight: T.Tensor((streams, width), weight_type),
        image_mask: T.Tensor((num_flags,), "bool"),
        updated: T.Tensor((num_rows, streams, width), "bfloat16"),
        eps: T.float32,
    ) -> None:
        with T.Kernel(T.min(num_rows, blocks), threads=shape.threads) as block:
            T.annotate_min_blocks_per_sm(BLOCKS)
            thread = T.get_thread_binding()
            factors = T.alloc_shared((streams, width), "float32")
            parts = T.alloc_shared((warps, sums), "float32")
            gates = T.alloc_shared((streams,), "float32")
            held_trunk = T.alloc_local((streams * held,), "bfloat16")
            held_value = T.alloc_local((held,), "bfloat16")
            queries = T.alloc_local((vector,), weight_type)
            keys = T.alloc_local((vector,), weight_type)
            product = T.alloc_local((vector,), "float32")
            row_keys = T.alloc_local((vector,), "bfloat16")
            factor = T.alloc_local((vector,), "float32")
            total = T.alloc_local((sums,), "float32")
            fresh = T.alloc_local((vector,), "float32")
            row = T.alloc_var("int32")
            is_image = T.alloc_var("bool")
            is_image = False
            # Every thread reads only what it has written itself.
            for j in T.unroll(streams):
                for k in T.unroll(rounds):
                    for i in T.vectorized(vector):
                        queries[i] = q_weight[j, (thread + k * shape.row_threads) * vector + i]
                    for i in T.vectorized(vector):
                        keys[i] = k_weight[j, (thread + k * shape.row_threads) * vector + i]
                    for i in T.unroll(vector):
                        product[i] = T.cast(queries[i], "float32") * T.cast(keys[i], "float32")
                    for i in T.vectorized(vector):
                        factors[j, (thread + k * shape.row_threads) * vector + i] = product[i]
            row = block
            while row < num_rows:
                for j in T.unroll(streams):
                    for k in T.unroll(rounds):
                        for i in T.vectorized(vector):
                            held_trunk[(j * rounds + k) * vector + i] = trunk[
                                row, j, (thread + k * shape.row_threads) * vector + i
                            ]
                for k in T.unroll(rounds):
                    for i in T.vectorized(vector):
                        held_value[k * vector + i] = projected[
                            row, streams, (thread + k * shape.row_threads) * vector + i
                        ]
                for j in T.unroll(streams):
                    for c in T.unroll(3):
                        total[3 * j + c] = 0.0
                    for k in T.unroll(rounds):
                        for i in T.vectorized(vector):
                            row_keys[i] = projected[row, j, (thread + k * shape.row_threads) * vector + i]
                        for i in T.vectorized(vector):
                            factor[i] = factors[j, (thread + k * shape.row_threads) * vector + i]
                        for i in T.unroll(vector):
                            x = T.cast(held_trunk[(j * rounds + k) * vector + i], "float32")
                            key = T.cast(row_keys[i], "float32")
                            total[3 * j] = total[3 * j] + x * factor[i] * key
                            total[3 * j + 1] = total[3 * j + 1] + x * x
                            total[3 * j + 2] = total[3 * j + 2] + key * key
                for step in T.unroll(5):
                    for c in T.unroll(sums):
                        total[c] = total[c] + T.shfl_xor(total[c], 16 >> step)
                if thread % WARP == 0:
                    for c in T.unroll(sums):
                        parts[thread // WARP, c] = total[c]
                T.sync_threads()
                if thread < streams:
                    for c in T.unroll(3):
                        total[c] = 0.0
                        for warp in T.unroll(warps):
                            total[c] = total[c] + parts[warp, 3 * thread + c]
                    dot = T.alloc_var("float32")
                    dot = (
                        total[0]
                        * T.rsqrt(total[1] / width + eps)
                        * T.rsqrt(total[2] / width + eps)
                        * T.float32(width**-0.5)
                    )
                    root = T.alloc_var("float32")
                    root = T.sqrt(T.max(T.abs(dot), T.float32(GATE_FLOOR)))
                    root = T.if_then_else(T.reinterpret(dot, "int32") < 0, -root, root)
                    gates[thread] = 1.0 / (1.0 + T.exp(-root))
                T.sync_threads()
                if has_images:
                    is_image = image_mask[row]
                for j in T.unroll(streams):
                    for k in T.unroll(rounds):
                        for i in T.unroll(vector):
                            x = T.cast(held_trunk[(j * rounds + k) * vector + i], "float32")
                            added = gates[j] * T.cast(held_value[k * vector + i], "float32")
                            fresh[i] = T.if_then_else(is_image, x, x + added)
                        for i in T.vectorized(vector):
                            updated[row, j, (thread + k * shape.row_threads) * vector + i] = fresh[i]
                row = row + blocks

    return compiled(engram_update, architecture)


def engram_hash(
    ngram_ids: Tensor, multipliers: Tensor, primes: Tensor, offsets: Tensor, image_mask: Tensor | None = None
) -> Tensor:
    """As the reference."""
    check_hash(ngram_ids, multipliers, primes, offsets, image_mask)
    (n, sizes), (columns,) = ngram_ids.shape, primes.shape
    check_device(ngram_ids=ngram_ids, multipliers=multipliers, primes=primes, offsets=offsets)
    rows = torch.empty(n, columns, dtype=torch.int64, device=ngram_ids.device)
    if rows.numel():
        flags = _flags(image_mask, ngram_ids)
        with torch.cuda.device(ngram_ids.device):
            kernel = hash_kernel(sizes, columns, image_mask is not None)
            kernel(ngram_ids.contiguous(), multipliers, primes, offsets, flags, rows)
    return rows


def engram_lookup(codes: Tensor, scales: Tensor, buckets: Tensor) -> Mxfp8Rows:
    """As the reference."""
    check_table(codes, scales, buckets)
    check_contiguous(codes=codes, scales=scales, buckets=buckets)
    check_device(codes=codes, scales=scales, buckets=buckets)
    n, columns = buckets.shape
    result = empty_mxfp8(n, columns * codes.shape[1], codes.device)
    if buckets.numel():
        with torch.cuda.device(codes.device):
            lookup_kernel(codes.shape[1], columns)(codes, scales, buckets, *result)
    return result


def engram_update(
    trunk: Tensor,
    projected: Tensor,
    q_weight: Tensor,
    k_weight: Tensor,
    eps: float,
    image_mask: Tensor | None = None,
) -> Tensor:
    """As the reference; both weights have one dtype."""
    check_rows("trunk", trunk, torch.bfloat16, ("n", "m", "h"))
    n, streams, width = trunk.shape
    check_rows("projected", projected, torch.bfloat16, (n, (streams + 1) * width))
    check_weight("q_weight", q_weight, (streams, width))
    check_weight("k_weight", k_weight, (streams, width))
    if q_weight.dtype != k_weight.dtype:
        raise ConfigError(f"k_weight has dtype {k_weight.dtype}; that of q_weight, {q_weight.dtype}, is required")
    check_contiguous(trunk=trunk, projected=projected)
    check_device(trunk=trunk, projected=projected, q_weight=q_weight, k_weight=k_weight)
    updated = torch.empty_like(trunk)
    if n:
        blocks = BLOCKS * processors(trunk.device)
        kernel = update_kernel(streams, width, name_of(q_weight.dtype), image_mask is not None, blocks)
        with torch.cuda.device(trunk.device):
            places = projected.view(n, streams + 1, width)
            kernel(trunk, places, q_weight, k_weight, _flags(image_mask, trunk), updated, eps)
    return updated


def _flags(image_mask: Tensor | None, rows: Tensor) -> Tensor:
    """The mask, checked; or one element that no kernel reads."""
    if image_mask is None:
        return torch.empty(1, dtype=torch.bool, device=rows.device)
    check_rows("image_mask", image_mask, torch.bool, (rows.shape[0],))
    check_device(image_mask=image_mask, rows=rows)
    return image_mask.contiguous()


IMPLEMENTATIONS = tuple(implementation(function) for function in (engram_hash, engram_lookup, engram_update))

COMPILE_EXAMPLES: dict[str, Callable[[str], Any]] = {
    "engram_hash": lambda architecture: hash_kernel(4, 24, True, architecture),
    "engram_lookup": lambda architecture: lookup_kernel(256, 24, architecture),
    "engram_update": lambda architecture: update_kernel(4, 5120, "bfloat16", True, 264, architecture),
}
