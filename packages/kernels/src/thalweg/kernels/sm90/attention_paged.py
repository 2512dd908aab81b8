"""Attention over cached records on Hopper, read and de-quantised where they lie.

A block takes one query row, padded to 64 heads, and its list of keys in tiles of 64. Eight warps fetch the records of a
tile and write them to shared memory as bfloat16, where they serve both as keys and as values. That is CUDA C++
(cuda/attention_keys.cuh): TileLang has no permutation of bytes and no product of packed bfloat16.
"""
# Without postponed annotations: those of the kernel are its arguments' types to TileLang.
# mypy: disable-error-code="valid-type, name-defined, untyped-decorator"

import functools
import math
from typing import Any, NamedTuple

import torch
from torch import Tensor

from thalweg.interfaces import ConfigError
from thalweg.kernels.reference.paged_attention import check_paged_attention
from thalweg.kernels.reference.record_format import RecordFormat
from thalweg.kernels.registry import Implementation
from thalweg.kernels.sm90.cuda_source import cuda_source
from thalweg.kernels.sm90.library import ARCHITECTURE, compiled, tilelang
from thalweg.kernels.sm90.tensors import check_device, span, unit_bytes

SOURCE = "attention_keys.cuh"
KEY_FACTOR = 2.0**-14
"""Keys of records are carried times this, so that the scales of all formats fit bfloat16. It is exact."""
HEADS = 64
"""Rows of one matrix instruction; fewer heads are padded with zeros."""
TILE = 64
COLUMNS = 128
"""Columns come in multiples of this: each half of the warps sums half of them, of which 64 fit the swizzle of keys."""
THREADS = 256
LOWEST = -1e30
"""Level of a row that has seen no key: finite, so that differences of levels are numbers."""


@functools.cache
def paged_attention_kernel(
    heads: int,
    dim: int,
    window: int,
    selected: int,
    main_format: RecordFormat = RecordFormat.FP4_MAIN,
    alignments: tuple[int, int] = (16, 16),
    architecture: str = ARCHITECTURE,
) -> Any:
    """The compiled kernel for lists of `window` MXFP8 records and `selected` ones of the main format (0: none).

    alignments: bytes, 2, 4 or 16, that every record of the window and every selected one is aligned to.
    """
    T = tilelang().language
    num_rows, num_lists = T.dynamic("num_rows"), T.dynamic("num_lists")
    window_bytes, main_bytes = T.dynamic("window_bytes", "int64"), T.dynamic("main_bytes", "int64")
    columns = -(-dim // COLUMNS) * COLUMNS
    window_tiles, main_tiles = -(-window // TILE), -(-selected // TILE)
    window_record, main_record = RecordFormat.MXFP8.record_bytes(dim), main_format.record_bytes(dim)
    main_kind = "fp4" if main_format is RecordFormat.FP4_MAIN else "mxfp8"
    window_call = f"thalweg::{{}}_mxfp8<{dim}{{}}>"
    main_call = f"thalweg::{{}}_{main_kind}<{dim}{{}}>"

    @T.prim_func
    def paged_sparse_attention(
        q: T.Tensor((num_rows, heads, dim), "bfloat16"),
        window_view: T.Tensor((window_bytes,), "uint8"),
        window_slots: T.Tensor((num_lists, window), "int32"),
        main_view: T.Tensor((main_bytes,), "uint8"),
        main_slots: T.Tensor((num_lists, max(selected, 1)), "int32"),
        sink: T.Tensor((heads,), "float32"),
        out: T.Tensor((num_rows, heads, dim), "bfloat16"),
        scale: T.float32,
        shared: T.int32,
        window_entries: T.int32,
        window_stride: T.int64,
        window_capacity: T.int32,
        main_entries: T.int32,
        main_stride: T.int64,
        main_capacity: T.int32,
    ) -> None:
        with T.Kernel(num_rows, threads=THREADS) as row:
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
            words = T.alloc_local((40,), "uint32")
            slot, first = T.alloc_var("int32"), T.alloc_var("int64")
            own_list, exponent = T.alloc_var("int32"), T.alloc_var("float32")
            thread = T.get_thread_binding()
            key = thread // 32 * 8 + thread % 8
            own_list = T.truncdiv(row, shared)
            exponent = scale * (math.log2(math.e) / KEY_FACTOR)
            for i, j in T.Parallel(HEADS, columns):
                queries[i, j] = T.if_then_else(
                    i < heads and j < dim, q[row, T.min(i, heads - 1), T.min(j, dim - 1)], T.bfloat16(0)
                )
            if columns > dim:
                for i, j in T.Parallel(TILE, columns - dim):
                    keys[i, dim + j] = 0
            T.clear(sums)
            T.clear(total)
            T.fill(level, LOWEST)
            for tile in T.serial(window_tiles + main_tiles):
                slot = -1
                first = 0
                T.sync_threads()
                if tile < window_tiles:
                    if tile * TILE + key < window:
                        slot = window_slots[own_list, tile * TILE + key]
                    if slot < 0 or slot >= window_capacity:
                        slot = -1
                    else:
                        first = T.cast(T.truncdiv(slot, window_entries), "int64") * window_stride
                        first += T.cast(T.truncmod(slot, window_entries), "int64") * window_record
                    T.call_extern(
                        "handle",
                        window_call.format("fetch", f", {alignments[0]}"),
                        T.address_of(words[0]),
                        T.address_of(window_view[first]),
                    )
                    T.call_extern(
                        "handle",
                        window_call.format("store", ""),
                        T.address_of(keys[0, 0]),
                        T.address_of(words[0]),
                        slot >= 0,
                    )
                else:
                    if (tile - window_tiles) * TILE + key < selected:
                        slot = main_slots[own_list, (tile - window_tiles) * TILE + key]
                    if slot < 0 or slot >= main_capacity:
                        slot = -1
                    else:
                        first = T.cast(T.truncdiv(slot, main_entries), "int64") * main_stride
                        first += T.cast(T.truncmod(slot, main_entries), "int64") * main_record
                    T.call_extern(
                        "handle",
                        main_call.format("fetch", f", {alignments[1]}"),
                        T.address_of(words[0]),
                        T.address_of(main_view[first]),
                    )
                    T.call_extern(
                        "handle",
                        main_call.format("store", ""),
                        T.address_of(keys[0, 0]),
                        T.address_of(words[0]),
                        slot >= 0,
                    )
                if thread % 32 // 8 == 0:
                    bias[key] = T.if_then_else(slot >= 0, T.float32(0), -T.infinity("float32"))
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
                decay[i] = T.exp2(sink[T.min(i, heads - 1)] * math.log2(math.e) - level[i])
                decay[i] = T.if_then_else(total[i] > 0, 1 / KEY_FACTOR / (total[i] + decay[i]), T.float32(0))
            for i, j in T.Parallel(HEADS, columns):
                if i < heads and j < dim:
                    out[row, i, j] = T.cast(sums[i, j] * decay[i], "bfloat16")

    return compiled(paged_sparse_attention, architecture, {"tl.disable_warp_specialized": True})


class Records(NamedTuple):
    """A view of cached records, as the kernel takes it."""

    flat: Tensor
    """uint8, from the first byte to the last."""
    alignment: int
    """Bytes, 2, 4 or 16, that every record is aligned to."""
    geometry: tuple[int, int, int]
    """Entries of a page, bytes from page to page, and entries of all pages."""

    @classmethod
    def of(cls, name: str, view: Tensor) -> "Records":
        """For a view uint8 [pages, entries, 1, record]; a ConfigError for gaps between entries, or odd bytes."""
        pages, entries, _, record = view.shape
        if view.stride(1) != record:
            raise ConfigError(
                f"{name} has entries {view.stride(1)} bytes apart; {record}, as long as they are, is required"
            )
        alignment = unit_bytes(16, view.data_ptr(), view.stride(0), record)
        if alignment < 2:
            raise ConfigError(f"{name} has records at odd bytes; an alignment to 2 bytes at least is required")
        return cls(span(view), 4 if alignment == 8 else alignment, (entries, view.stride(0), pages * entries))


def paged_sparse_attention(
    q: Tensor,
    window_view: Tensor,
    window_slots: Tensor,
    main_view: Tensor | None,
    main_slots: Tensor | None,
    main_format: RecordFormat,
    sink: Tensor,
    scale: float,
) -> Tensor:
    """As the reference, for q bfloat16 with at most 64 heads of a multiple of 64 columns, up to 512.

    Products are those of bfloat16 values, summed in float32. The mass of a key is rounded to bfloat16 before values are
    summed, and the output once more: each costs a relative error of about 1.7e-3 (Frobenius).
    """
    num_lists = check_paged_attention(q, window_view, window_slots, main_view, main_slots, main_format, sink)
    rows, heads, dim = q.shape
    check_heads(q)
    if heads > HEADS:
        raise ConfigError(f"q has {heads} heads; at most {HEADS} are accepted")
    if window_slots.shape[1] == 0:
        raise ConfigError("window_slots has 0 columns; at least 1 is required")
    out = torch.empty_like(q, memory_format=torch.contiguous_format)
    if rows == 0:
        return out
    selected = 0 if main_slots is None else main_slots.shape[1]
    if main_view is None or main_slots is None:
        main_view, main_slots, main_format = window_view, window_slots[:, :1], RecordFormat.MXFP8
    views = {"window_view": window_view, "main_view": main_view}
    check_device(q=q, **views, window_slots=window_slots, main_slots=main_slots, sink=sink)
    window, main = Records.of("window_view", window_view), Records.of("main_view", main_view)
    alignments = (window.alignment, main.alignment)
    kernel = paged_attention_kernel(heads, dim, window_slots.shape[1], selected, main_format, alignments)
    with torch.cuda.device(q.device):
        kernel(
            q.contiguous(),
            window.flat,
            window_slots.int().contiguous(),
            main.flat,
            main_slots.int().contiguous(),
            sink.float().contiguous(),
            out,
            scale,
            rows // num_lists,
            *window.geometry,
            *main.geometry,
        )
    return out


def check_heads(q: Tensor) -> None:
    """Raise ConfigError unless kernels of attention take queries [n, H, D] like these."""
    dim = q.shape[2]
    if q.dtype != torch.bfloat16:
        raise ConfigError(f"q has dtype {q.dtype}; bfloat16 is required")
    if dim % 64 or not 0 < dim <= 512:
        raise ConfigError(f"q has heads of {dim} columns; 64, 128, ... 512 are accepted")


IMPLEMENTATIONS = (
    Implementation(
        op="paged_sparse_attention",
        backend="sm90",
        provider="tilelang",
        function=paged_sparse_attention,
        deterministic=True,
        batch_invariant=True,
        graph_safe=True,
    ),
)
COMPILE_EXAMPLES = {
    "paged_sparse_attention": lambda architecture: paged_attention_kernel(64, 512, 128, 512, architecture=architecture)
}
"""Kernels at real dimensions, by name."""
