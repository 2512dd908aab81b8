"""Attention over records of the cache: a window and selected entries, read where they lie."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import torch
from torch import Tensor

from thalweg.interfaces import ConfigError
from thalweg.kernels.reference.attention import sparse_attention
from thalweg.kernels.reference.cache import gather_records
from thalweg.kernels.reference.numerics import carried, check_floats, check_shape
from thalweg.kernels.reference.record_format import RecordFormat

MAIN_FORMATS = (RecordFormat.FP4_MAIN, RecordFormat.MXFP8)


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
    """Attention output [n, H, D] of q [n, H, D], in the dtype of q; keys, which are the values too, are cached rows.

    window_view: uint8 [pages, entries, 1, record], records MXFP8. window_slots: int [L, W] flat slots; L divides n, and
    n / L consecutive rows share a list. main_view, main_slots [L, K]: the same of selected entries, records of
    `main_format` (FP4_MAIN or MXFP8); both None: there are none. Slot -1 (or any outside its view) is no key.
    sink: [H] adds e^sink to the denominator and has no value vector. A row without keys gives 0. The result of a row
    depends on that row, the records of its list, W and K alone.
    """
    num_lists = check_paged_attention(q, window_view, window_slots, main_view, main_slots, main_format, sink)
    query = carried(q, "q")
    parts = [(window_view, window_slots, RecordFormat.MXFP8)]
    if main_view is not None and main_slots is not None:
        parts.append((main_view, main_slots, main_format))
    listed = [_listed_keys(*part, query.dtype) for part in parts]
    keys, valid = (torch.cat(pieces, 1) for pieces in zip(*listed, strict=True))
    own = torch.arange(valid.numel(), device=valid.device).view(valid.shape)
    shared = q.shape[0] // max(num_lists, 1)
    joined = query.reshape(num_lists, shared * q.shape[1], q.shape[2])
    indices = torch.where(valid, own, -1)
    out = sparse_attention(joined, keys.flatten(0, 1), indices, sink.type_as(query).repeat(shared), scale)
    return out.view(q.shape).type_as(q)


def check_paged_attention(
    q: Tensor,
    window_view: Tensor,
    window_slots: Tensor,
    main_view: Tensor | None,
    main_slots: Tensor | None,
    main_format: RecordFormat,
    sink: Tensor,
) -> int:
    """The number of lists; a ConfigError unless shapes and formats are those of paged_sparse_attention."""
    check_shape("q", q, ("n", "H", "D"))
    rows, heads, dim = q.shape
    check_floats("sink", sink, (heads,))
    check_shape("window_slots", window_slots, ("L", "W"))
    num_lists = window_slots.shape[0]
    if (rows % num_lists if num_lists else rows) != 0:
        raise ConfigError(f"window_slots has {num_lists} lists for {rows} rows of q; a divisor of {rows} is required")
    _check_records("window_view", window_view, RecordFormat.MXFP8, dim)
    _check_slots("window_slots", window_slots)
    if (main_view is None) != (main_slots is None):
        missing = "main_view" if main_view is None else "main_slots"
        raise ConfigError(f"{missing} is None; main_view and main_slots come together")
    if main_view is not None and main_slots is not None:
        if main_format not in MAIN_FORMATS and not isinstance(main_format, RecordFormat):
            raise ConfigError(f"main_format is {main_format!r}; FP4_MAIN and MXFP8 are accepted")
        if main_format not in MAIN_FORMATS:
            raise ConfigError(f"main_format is {main_format.name}; FP4_MAIN and MXFP8 are accepted")
        check_shape("main_slots", main_slots, (num_lists, "K"))
        _check_records("main_view", main_view, main_format, dim)
        _check_slots("main_slots", main_slots)
    return num_lists


def _check_records(name: str, view: Tensor, record_format: RecordFormat, dim: int) -> None:
    check_shape(name, view, ("pages", "entries", 1, record_format.record_bytes(dim)))
    if view.dtype != torch.uint8 or view.stride(3) != 1:
        raise ConfigError(f"{name} is {view.dtype} with strides {list(view.stride())}; uint8, last 1, is required")
    if view.numel() == 0:
        raise ConfigError(f"{name} has shape {list(view.shape)}; at least one entry is required, be it read or not")


def _check_slots(name: str, slots: Tensor) -> None:
    if slots.dtype not in (torch.int32, torch.int64):
        raise ConfigError(f"{name} has dtype {slots.dtype}; int32 or int64 is required")


def _listed_keys(view: Tensor, slots: Tensor, record_format: RecordFormat, dtype: torch.dtype) -> tuple[Tensor, Tensor]:
    """Keys [L, k, D] of the slots [L, k], and which of them are keys."""
    valid = (slots >= 0) & (slots < view.shape[0] * view.shape[1])
    return gather_records(view, torch.where(valid, slots, -1), record_format, dtype), valid


OPS: dict[str, Callable[..., Any]] = {"paged_sparse_attention": paged_sparse_attention}
