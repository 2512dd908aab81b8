"""Random arguments of attention over cached records."""

from __future__ import annotations

from typing import NamedTuple

import torch
from kernels_testing.row_cases import integers, random
from torch import Tensor

from thalweg.kernels import RecordFormat
from thalweg.kernels.reference.cache import gather_records, store_records


class PagedCase(NamedTuple):
    """Arguments of paged_sparse_attention, in order."""

    q: Tensor
    window_view: Tensor
    window_slots: Tensor
    main_view: Tensor | None
    main_slots: Tensor | None
    main_format: RecordFormat
    sink: Tensor
    scale: float

    def rows(self, lists: Tensor) -> PagedCase:
        """The rows of these lists alone."""
        shared = self.q.shape[0] // self.window_slots.shape[0]
        q = self.q.view(-1, shared, *self.q.shape[1:])[lists].flatten(0, 1)
        main_slots = None if self.main_slots is None else self.main_slots[lists]
        return self._replace(q=q, window_slots=self.window_slots[lists], main_slots=main_slots)


def filled_view(
    record_format: RecordFormat, dim: int, *, pages: int = 5, entries: int = 33, gap: int = 64, seed: int = 0
) -> Tensor:
    """A view full of random rows; pages lie `gap` bytes of ones (NaN as records) apart."""
    record = record_format.record_bytes(dim)
    pool = torch.full((pages, entries * record + gap), 0xFF, dtype=torch.uint8)
    view = pool[:, : entries * record].view(pages, entries, 1, record)
    rows = random(pages * entries, dim, dtype=torch.float32, seed=seed)
    store_records(view, torch.arange(pages * entries, device=rows.device), rows, record_format)
    return view


def paged_case(
    num_lists: int = 6,
    shared: int = 1,
    heads: int = 8,
    dim: int = 64,
    widths: tuple[int, int | None] = (64, 64),
    main_format: RecordFormat = RecordFormat.FP4_MAIN,
    dtype: torch.dtype = torch.bfloat16,
    missing: float = 0.2,
    seed: int = 0,
) -> PagedCase:
    """Lists of random slots, a share of them -1; no selected entries if the second width is None."""
    window = filled_view(RecordFormat.MXFP8, dim, seed=seed + 1)
    capacity = window.shape[0] * window.shape[1]

    def slots(width: int, place: int) -> Tensor:
        listed = integers(0, capacity, num_lists, width, seed=seed + place)
        dropped = torch.rand(listed.shape, generator=torch.Generator().manual_seed(seed + place), device="cpu")
        return torch.where(dropped.to(listed.device) < missing, -1, listed).int()

    q, sink = random(num_lists * shared, heads, dim, dtype=dtype, seed=seed), random(heads, dtype=torch.float32)
    window_slots, selected = slots(widths[0], 3), widths[1]
    if selected is None:
        return PagedCase(q, window, window_slots, None, None, main_format, sink, dim**-0.5)
    main = filled_view(main_format, dim, entries=32, pages=7, gap=96, seed=seed + 2)
    return PagedCase(q, window, window_slots, main, slots(selected, 4), main_format, sink, dim**-0.5)


def decoded_keys(case: PagedCase) -> tuple[Tensor, Tensor]:
    """The same as arguments of sparse_attention: keys [L * (W + K), D] float32, indices [n, W + K]."""
    parts = [gather_records(case.window_view, case.window_slots, RecordFormat.MXFP8)]
    valid = [case.window_slots >= 0]
    if case.main_view is not None and case.main_slots is not None:
        parts.append(gather_records(case.main_view, case.main_slots, case.main_format))
        valid.append(case.main_slots >= 0)
    keys, listed = torch.cat(parts, 1), torch.cat(valid, 1)
    own = torch.arange(listed.numel(), device=listed.device).view(listed.shape)
    shared = case.q.shape[0] // max(1, listed.shape[0])
    return keys.flatten(0, 1), torch.where(listed, own, -1).repeat_interleave(shared, 0)
