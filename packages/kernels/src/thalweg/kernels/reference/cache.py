"""Records of the cache: encode rows into pages, decode them back, by flat slot or by load plan.

A view is uint8 [pages, entries, 1, record_bytes]; pages may lie any distance apart (one page of one layer inside a
block or a state slot). The flat slot of an entry is page * entries + entry; slot -1 stores nothing and reads zeros.
Every function takes the record format explicitly: equal byte counts can mean different formats.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import torch

from thalweg.interfaces import ConfigError
from thalweg.kernels.reference import quant
from thalweg.kernels.reference.numerics import check_count, check_floats, check_integers
from thalweg.kernels.reference.record_format import RecordFormat


def store_records(
    view: torch.Tensor,
    slots: torch.Tensor,
    rows: torch.Tensor,
    record_format: RecordFormat,
    *,
    refuse_nan: bool = False,
) -> None:
    """Encode rows into their slots; bytes of other slots stay.

    view: uint8 [pages, entries, 1, record_bytes], written in place. slots: int [n] flat slots, -1 = skip; slots are
    distinct (of equal ones, as of placeholder rows, one row wins). rows: float [n, D] (FLOAT64: stored as float64).
    A NaN element of a quantised format is written as 0, or refused with a ConfigError if `refuse_nan`.
    """
    entries = check_view(view, record_format)
    check_stored("rows", rows, view, slots, record_format)
    _check_slots(slots, view.shape[0] * entries)
    kept = (slots >= 0).nonzero()[:, 0]
    if kept.numel() == 0:
        return
    flat = slots[kept].long()
    data, scales = _encode(rows[kept], record_format, refuse_nan)
    page, entry = flat // entries, flat % entries
    data_view, scale_view = _parts(view, record_format)
    data_view[page, entry] = data
    scale_view[page, entry] = scales


def store_mxfp8(view: torch.Tensor, slots: torch.Tensor, rows: torch.Tensor, *, refuse_nan: bool = False) -> None:
    """`store_records` of MXFP8 records: window rings, and main KV when it is not FP4."""
    store_records(view, slots, rows, RecordFormat.MXFP8, refuse_nan=refuse_nan)


def store_fp4_e4m3(view: torch.Tensor, slots: torch.Tensor, rows: torch.Tensor, *, refuse_nan: bool = False) -> None:
    """`store_records` of FP4_MAIN records: compressed KV."""
    store_records(view, slots, rows, RecordFormat.FP4_MAIN, refuse_nan=refuse_nan)


def store_mxfp4_index(view: torch.Tensor, slots: torch.Tensor, rows: torch.Tensor, *, refuse_nan: bool = False) -> None:
    """`store_records` of MXFP4_INDEX records: index keys."""
    store_records(view, slots, rows, RecordFormat.MXFP4_INDEX, refuse_nan=refuse_nan)


def gather_parts(
    view: torch.Tensor, slots: torch.Tensor, record_format: RecordFormat
) -> tuple[torch.Tensor, torch.Tensor]:
    """The raw bytes of entries: data uint8 [..., data bytes] and scales uint8 [..., scale bytes]; zeros for slot -1.

    view: uint8 [pages, entries, 1, record_bytes]. slots: int [...] flat slots.
    """
    missing = (slots < 0)[..., None]
    data, scales = _gather_bytes(view, slots, record_format)
    return data.masked_fill(missing, 0), scales.masked_fill(missing, 0)


def gather_records(
    view: torch.Tensor, slots: torch.Tensor, record_format: RecordFormat, dtype: torch.dtype = torch.float32
) -> torch.Tensor:
    """The decoded rows [..., D] of entries in `dtype`; zeros for slot -1.

    view: uint8 [pages, entries, 1, record_bytes]. slots: int [...] flat slots. Every finite value of the quantised
    formats is exact in bfloat16, float32 and float64 (bfloat16 may underflow).
    """
    data, scales = _gather_bytes(view, slots, record_format)
    return _decode(data, scales, record_format, dtype).masked_fill_((slots < 0)[..., None], 0.0)


def segments_to_slots(segments: torch.Tensor, num_rows: int, entries: int) -> torch.Tensor:
    """The flat slot of every output row of a load plan: int64 [num_rows], -1 for zero rows.

    segments: int [m, 4] rows (page or -1, begin, end, destination) in output order, covering [0, num_rows) without a
    gap. entries: entries per page.
    """
    check_segments(segments, num_rows, entries)
    page, begin, end, destination = segments.long().unbind(1)
    counts = end - begin
    expected = counts.cumsum(0) - counts
    if int(counts.sum()) != num_rows or bool((counts < 0).any()) or not torch.equal(expected, destination):
        raise ConfigError(f"segments must fill rows 0..{num_rows - 1} in order; they give {int(counts.sum())} rows")
    if bool(((page >= 0) & ((begin < 0) | (end > entries))).any()):
        raise ConfigError(f"a segment reaches outside its page of {entries} entries")
    segment = torch.repeat_interleave(torch.arange(counts.numel(), device=segments.device), counts)
    rank = torch.arange(num_rows, device=segments.device) - destination[segment]
    slots = page[segment] * entries + begin[segment] + rank
    return torch.where(page[segment] < 0, -1, slots)


def load_records(
    view: torch.Tensor,
    segments: torch.Tensor,
    num_rows: int,
    record_format: RecordFormat,
    dtype: torch.dtype = torch.float32,
) -> torch.Tensor:
    """The decoded rows [num_rows, D] that a load plan names; a source of -1 gives zero rows.

    view: uint8 [pages, entries, 1, record_bytes]. segments: int [m, 4], see `segments_to_slots`.
    """
    entries = check_view(view, record_format)
    return gather_records(view, segments_to_slots(segments, num_rows, entries), record_format, dtype)


def load_parts(
    view: torch.Tensor, segments: torch.Tensor, num_rows: int, record_format: RecordFormat
) -> tuple[torch.Tensor, torch.Tensor]:
    """The raw bytes of a load plan's rows: data uint8 [num_rows, data bytes], scales uint8 [num_rows, scale bytes]."""
    return gather_parts(view, segments_to_slots(segments, num_rows, check_view(view, record_format)), record_format)


def _gather_bytes(
    view: torch.Tensor, slots: torch.Tensor, record_format: RecordFormat
) -> tuple[torch.Tensor, torch.Tensor]:
    """Data and scale bytes of entries; those of slot 0 where a slot is -1."""
    entries = check_view(view, record_format)
    _check_slots(slots, view.shape[0] * entries)
    slots = slots.long().clamp(min=0)
    data, scales = _parts(view, record_format)
    return _rows_at(data, slots), _rows_at(scales, slots)


def _parts(view: torch.Tensor, record_format: RecordFormat) -> tuple[torch.Tensor, torch.Tensor]:
    """Data [pages, entries, data bytes] and scales [pages, entries, scale bytes] of all entries, sharing the view."""
    pages, entries, _, record_bytes = view.shape
    width = record_format.width(record_bytes)
    data_bytes, scale_bytes = record_format.data_bytes(width), record_format.scale_bytes(width)
    if not record_format.is_block_split:
        data, scales = view[:, :, 0].split_with_sizes((data_bytes, scale_bytes), -1)
        return data, scales
    stride, start = view.stride(0), view.storage_offset()
    data = view.as_strided((pages, entries, data_bytes), (stride, data_bytes, 1), start)
    scales = view.as_strided((pages, entries, scale_bytes), (stride, scale_bytes, 1), start + entries * data_bytes)
    return data, scales


def _rows_at(view: torch.Tensor, slots: torch.Tensor) -> torch.Tensor:
    """Rows [..., size] of a view [pages, entries, size], by flat slots [...].

    Pages may lie any number of bytes apart. So a row is found by its first byte, in a view with a row from every byte
    on: one look-up of whole rows, many times faster than indexing by page and entry.
    """
    pages, entries, size = view.shape
    page_bytes, entry_bytes, _ = view.stride()
    num_bytes = (pages - 1) * page_bytes + (entries - 1) * entry_bytes + 1 if pages else 0
    row_from_every_byte = view.as_strided((num_bytes, size), (1, 1))
    first_byte = slots * entry_bytes + slots // entries * (page_bytes - entries * entry_bytes)
    return row_from_every_byte.index_select(0, first_byte.flatten()).view(*slots.shape, size)


def _encode(rows: torch.Tensor, record_format: RecordFormat, refuse_nan: bool) -> tuple[torch.Tensor, torch.Tensor]:
    if record_format is RecordFormat.FLOAT64:
        data = rows.double().contiguous().view(torch.uint8)
        return data, data[:, :0]
    if record_format is RecordFormat.FP4_MAIN:
        return quant.quantize_fp4_e4m3(rows, refuse_nan)
    return (quant.quantize_mxfp8 if record_format is RecordFormat.MXFP8 else quant.quantize_mxfp4)(rows, refuse_nan)


def _decode(data: torch.Tensor, scales: torch.Tensor, record_format: RecordFormat, dtype: torch.dtype) -> torch.Tensor:
    if record_format is RecordFormat.FLOAT64:
        return data.contiguous().view(torch.float64).to(dtype)
    if record_format is RecordFormat.FP4_MAIN:
        return quant.dequantize_fp4_e4m3(data, scales, dtype)
    if record_format is RecordFormat.MXFP8:
        return quant.dequantize_mxfp8(data, scales, dtype)
    return quant.dequantize_mxfp4(data, scales, dtype)


def check_view(view: torch.Tensor, record_format: RecordFormat) -> int:
    """Entries per page of a well-formed view."""
    if not isinstance(record_format, RecordFormat):
        raise ConfigError(f"record_format is {record_format!r}; a RecordFormat is required")
    if view.dtype != torch.uint8 or view.dim() != 4 or view.shape[2] != 1:
        raise ConfigError(
            f"view is {view.dtype} {tuple(view.shape)}; uint8 [pages, entries, 1, record_bytes] is needed"
        )
    if view.stride(3) != 1 or (record_format.is_block_split and view.stride(1) != view.shape[3]):
        raise ConfigError(f"view has strides {view.stride()}; {record_format.name} pages must be contiguous inside")
    return view.shape[1]


def check_stored(
    name: str, rows: torch.Tensor, view: torch.Tensor, slots: torch.Tensor, record_format: RecordFormat
) -> None:
    """Raise ConfigError unless rows [n, D] are of the width of a well-formed view's records, with slots [n]."""
    width = record_format.width(view.shape[3])
    check_integers("slots", slots, ("n",))
    check_floats(name, rows, (slots.shape[0], width))


def check_segments(segments: torch.Tensor, num_rows: int, entries: int) -> None:
    """Raise ConfigError unless `segments_to_slots` takes these; contents are not looked at."""
    check_integers("segments", segments, ("m", 4))
    check_count("num_rows", num_rows)
    check_count("entries", entries)


def _check_slots(slots: torch.Tensor, capacity: int) -> None:
    check_integers("slots", slots)
    if slots.numel() == 0:
        return
    low, high = (int(bound) for bound in torch.aminmax(slots))
    if low < -1 or high >= capacity:
        bad = low if low < -1 else high
        raise ConfigError(f"slot {bad} is outside the view; -1 and 0..{capacity - 1} are accepted")


OPS: dict[str, Callable[..., Any]] = {
    "store_records": store_records,
    "store_mxfp8": store_mxfp8,
    "store_fp4_e4m3": store_fp4_e4m3,
    "store_mxfp4_index": store_mxfp4_index,
    "gather_records": gather_records,
    "gather_parts": gather_parts,
    "load_records": load_records,
    "load_parts": load_parts,
    "segments_to_slots": segments_to_slots,
}
"""Ops of this module by name, for the registry."""
