"""Attention over cached records on Hopper, read and de-quantised where they lie; see cuda/attention_records.cuh."""
# Without postponed annotations: those of the kernel are its arguments' types to TileLang.
# mypy: disable-error-code="valid-type, name-defined, untyped-decorator"

import functools
from collections.abc import Callable
from typing import Any, NamedTuple

import torch
from torch import Tensor

from thalweg.interfaces import ConfigError
from thalweg.kernels.reference.paged_attention import check_paged_attention
from thalweg.kernels.reference.record_format import RecordFormat
from thalweg.kernels.sm90.attention_shell import HEADS, THREADS, TILE, check_queries, compiled_shell, shared_bytes
from thalweg.kernels.sm90.cuda_source import cuda_source
from thalweg.kernels.sm90.declared import implementation
from thalweg.kernels.sm90.library import ARCHITECTURE, tilelang
from thalweg.kernels.sm90.tensors import check_device, span, unit_bytes

MOST_KEYS = 1536
"""Of a list: the places of all of them are in shared memory."""


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
    num_bytes = shared_bytes(dim, -(-window // TILE) + -(-selected // TILE))
    is_fp4 = str(main_format is RecordFormat.FP4_MAIN).lower()
    body = f"thalweg::paged_attention<{dim}, {window}, {alignments[0]}, {selected}, {is_fp4}, {alignments[1]}>"

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
            T.import_source(cuda_source("attention_records.cuh"))
            memory = T.alloc_shared((num_bytes,), "uint8")
            T.call_extern(
                "handle",
                body,
                T.address_of(memory[0]),
                T.address_of(q[0, 0, 0]),
                T.address_of(window_view[0]),
                T.address_of(window_slots[0, 0]),
                T.address_of(main_view[0]),
                T.address_of(main_slots[0, 0]),
                T.address_of(sink[0]),
                T.address_of(out[0, 0, 0]),
                row,
                T.truncdiv(row, shared),
                heads,
                scale,
                window_entries,
                window_stride,
                window_capacity,
                main_entries,
                main_stride,
                main_capacity,
            )

    return compiled_shell(paged_sparse_attention, architecture)


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
    """As the reference, for q bfloat16 with at most 64 heads of 64, 128, ... 512 columns, and lists of 1 to 1536 keys.

    Products are those of bfloat16 values, summed in float32. The mass of a key is rounded to bfloat16 before values are
    summed, and the output once more: each costs a relative error of about 1.7e-3 (Frobenius).
    """
    num_lists = check_paged_attention(q, window_view, window_slots, main_view, main_slots, main_format, sink)
    rows, heads, dim = q.shape
    check_queries(q, scale)
    if heads > HEADS:
        raise ConfigError(f"q has {heads} heads; at most {HEADS} are accepted")
    width, selected = window_slots.shape[1], 0 if main_slots is None else main_slots.shape[1]
    if width == 0:
        raise ConfigError("window_slots has 0 columns; at least 1 is required")
    if width + selected > MOST_KEYS:
        raise ConfigError(f"lists have {width} + {selected} slots; at most {MOST_KEYS} in all are accepted")
    out = torch.empty_like(q, memory_format=torch.contiguous_format)
    if rows == 0:
        return out
    if main_view is None or main_slots is None:
        main_view, main_slots, main_format = window_view, window_slots[:, :1], RecordFormat.MXFP8
    check_device(
        q=q,
        window_view=window_view,
        window_slots=window_slots,
        main_view=main_view,
        main_slots=main_slots,
        sink=sink,
    )
    window, main = Records.of("window_view", window_view), Records.of("main_view", main_view)
    kernel = paged_attention_kernel(heads, dim, width, selected, main_format, (window.alignment, main.alignment))
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


IMPLEMENTATIONS = (implementation(paged_sparse_attention),)
COMPILE_EXAMPLES: dict[str, Callable[[str], Any]] = {
    "paged_sparse_attention": lambda architecture: paged_attention_kernel(64, 512, 128, 512, architecture=architecture)
}
"""Kernels at real dimensions, by name."""
HOPPER_KERNELS = frozenset(COMPILE_EXAMPLES)
"""They use instructions that only sm_90a has."""
