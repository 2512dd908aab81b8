"""Pages of cached records with room between them, and rows of every magnitude."""

from __future__ import annotations

from dataclasses import dataclass

import torch
from torch import Tensor

from thalweg.kernels import RecordFormat

CANARY = 0xA5


@dataclass(frozen=True)
class Pages:
    """Records of one layer inside larger pages: `offset` bytes before them and `rest` bytes behind them."""

    record_format: RecordFormat
    width: int
    entries: int
    num_pages: int
    offset: int = 0
    rest: int = 0

    @property
    def size(self) -> int:
        return self.entries * self.record_format.record_bytes(self.width)

    def make(self, fill: int = CANARY) -> Tensor:
        """uint8 [num_pages, bytes of a page]."""
        return torch.full((self.num_pages, self.offset + self.size + self.rest), fill, dtype=torch.uint8)

    def view(self, pages: Tensor) -> Tensor:
        inside = pages[:, self.offset : self.offset + self.size]
        return inside.view(self.num_pages, self.entries, 1, self.size // self.entries)

    @property
    def label(self) -> str:
        return f"{self.record_format.name}-{self.width}"


MXFP8, FP4_MAIN, MXFP4_INDEX = RecordFormat.MXFP8, RecordFormat.FP4_MAIN, RecordFormat.MXFP4_INDEX
PAGES = [
    Pages(MXFP8, 512, 134, 7, 32, 1056 - 32),
    Pages(FP4_MAIN, 512, 64, 9, 4352, 1152),
    Pages(MXFP4_INDEX, 128, 128, 9, 96, 32),
    Pages(MXFP8, 64, 70, 6, 0, 2),
    Pages(FP4_MAIN, 64, 8, 11, 36, 36),
    Pages(MXFP4_INDEX, 64, 8, 11, 0, 288),
]
"""As the released model has them, and the small one."""


def rows_of_every_magnitude(count: int, width: int, seed: int = 0) -> Tensor:
    """bfloat16 [count, width]: each row around a power of two of its own, with zeros of both signs and exact ties."""
    generator = torch.Generator().manual_seed(seed + count)
    rows = torch.randn(count, width, generator=generator)
    rows[1::5] = torch.randint(-48, 49, rows[1::5].shape, generator=generator) / 8
    scales = torch.randint(-24, 25, (count, 1), generator=generator)
    rows = rows * 2.0 ** torch.where(torch.rand(count, 1, generator=generator) < 0.5, 0, scales)
    rows[torch.rand(count, width, generator=generator) < 0.02] = 0.0
    rows[torch.rand(count, width, generator=generator) < 0.02] = -0.0
    if count > 2:
        rows[2] = 0.0
    return rows.bfloat16()


def distinct_slots(count: int, pages: Pages, seed: int = 0) -> Tensor:
    """int32 [count] of which every sixth is -1; the first and last slot of all pages are among the others."""
    generator = torch.Generator().manual_seed(seed + count)
    capacity = pages.entries * pages.num_pages
    slots = torch.randperm(capacity, generator=generator)[:count]
    edges = [0, capacity - 1, pages.entries - 1, pages.entries]
    rest = slots[~torch.isin(slots, torch.tensor(edges))]
    slots = torch.cat((torch.tensor(edges), rest))[:count].int()
    slots[3::6] = -1
    return slots
