"""How cached rows lie in their pages, and how kernels for Hopper share out a row.

A row of D elements belongs to `lanes` neighbouring lanes of a warp, the next power of two from D / 16 up. A lane that
encodes holds 16 elements side by side: a whole group of FP4_MAIN, and with its neighbour one of the other formats. A
lane that decodes holds twice 8, half a row apart, so that neighbours write side by side.
"""

from __future__ import annotations

import math
from dataclasses import dataclass

import torch
from torch import Tensor

from thalweg.interfaces import ConfigError
from thalweg.kernels.reference.cache import check_stored, check_view
from thalweg.kernels.reference.record_format import RecordFormat
from thalweg.kernels.sm90.tensors import span

PART = 16
"""Elements of a row that one lane encodes."""
HALF = PART // 2
WARP = 32
MOST = PART * WARP
"""Elements of the widest row."""
THREADS = 256
RESIDENT_BLOCKS = 6
"""Blocks of THREADS that a processor has registers for, at least: the more of them wait for memory, the better."""


def lanes_of(width: int) -> int:
    """Lanes that share a row of `width` elements; a ConfigError where no warp can hold it."""
    if width % PART or not 0 < width <= MOST:
        raise ConfigError(f"rows have {width} elements; kernels of sm90 need a multiple of {PART} up to {MOST}")
    return 1 << (width // PART - 1).bit_length()


@dataclass(frozen=True)
class RecordShape:
    """Where the bytes of a row lie in its page."""

    record_format: RecordFormat
    width: int
    entries: int | None
    """Of a page, where that matters: in pages that keep their data first."""
    unit: int
    """Bytes that are moved at once: all data begins at a multiple of it."""

    @property
    def data_bytes(self) -> int:
        """Codes of one row."""
        return self.record_format.data_bytes(self.width)

    @property
    def scale_bytes(self) -> int:
        """Scales of one row."""
        return self.record_format.scale_bytes(self.width)

    @property
    def entry_bytes(self) -> int:
        """From the data of one entry to that of the next."""
        return self.data_bytes if self.record_format.is_block_split else self.data_bytes + self.scale_bytes

    @property
    def scale_stride(self) -> int:
        """From the scales of one entry to those of the next."""
        return self.scale_bytes if self.record_format.is_block_split else self.entry_bytes

    @property
    def scale_start(self) -> int:
        """From the start of a page to the scales of its first entry."""
        return self.data_bytes * (self.entries or 1)

    @property
    def part_bytes(self) -> int:
        """Data of the elements that one lane encodes."""
        return self.data_bytes // self.parts

    @property
    def group_lanes(self) -> int:
        """Lanes that share a scale when they encode."""
        return max(self.record_format.group // PART, 1)

    @property
    def parts(self) -> int:
        """Lanes that hold elements."""
        return self.width // PART

    @property
    def lanes(self) -> int:
        """Lanes that share a row."""
        return lanes_of(self.width)


def record_shape(view: Tensor, record_format: RecordFormat) -> RecordShape:
    """The shape of the records of a well-formed view. Raises ConfigError for a format or width without kernels."""
    if record_format is RecordFormat.FLOAT64:
        raise ConfigError("record_format is FLOAT64; kernels of sm90 are for FP4_MAIN, MXFP8 and MXFP4_INDEX")
    width = record_format.width(view.shape[3])
    lanes_of(width)
    entries = view.shape[1] if record_format.is_block_split else None
    shape = RecordShape(record_format, width, entries, 1)
    page = view.stride(0) if view.shape[0] > 1 else 0
    unit = math.gcd(shape.part_bytes, shape.entry_bytes, page, view.data_ptr())
    return RecordShape(record_format, width, entries, unit)


def stored_shape(name: str, rows: Tensor, view: Tensor, slots: Tensor, record_format: RecordFormat) -> RecordShape:
    """The shape of the records that rows [n, D] become in slots [n]. Raises ConfigError where they do not fit."""
    check_view(view, record_format)
    shape = record_shape(view, record_format)
    check_stored(name, rows, view, slots, record_format)
    return shape


def unit_dtype(unit: int) -> torch.dtype:
    """The dtype whose elements make up units of so many bytes."""
    return {1: torch.uint8, 2: torch.int16}.get(unit, torch.int32)


def pages_of(view: Tensor, shape: RecordShape) -> tuple[Tensor, Tensor, int, int, int]:
    """What kernels are told of a view: its bytes in units, and one by one; bytes from page to page; entries of a page,
    and of all pages."""
    pages, entries = view.shape[:2]
    return span(view, unit_dtype(shape.unit)), span(view), view.stride(0), entries, pages * entries
