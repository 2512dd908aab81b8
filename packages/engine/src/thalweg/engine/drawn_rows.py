"""The rows of a step that are drawn at random, apart from the greedy ones, which need nothing but an argmax.

Letters: n rows, R of them drawn.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from typing import Any

import numpy as np
import torch
from numpy.typing import NDArray

from thalweg.engine.sampler_inputs import SamplerInputs
from thalweg.engine.upload import Uploader

Filters = tuple[torch.Tensor, torch.Tensor, torch.Tensor, torch.Tensor]
"""Of each row: temperature float32, top-p float32, top-k int32, min-p float32."""


_FILTERS = ("temperature", "top_p", "top_k", "min_p")


def filter_tensors(upload: Uploader, parameters: NDArray[Any]) -> Filters:
    """[n] each, of records [n] of `PARAMETERS`."""
    temperature, top_p, top_k, min_p = upload.all([parameters[name] for name in _FILTERS])
    return temperature, top_p, top_k, min_p


@dataclass(frozen=True, slots=True)
class DrawnRows:
    """Where the drawn rows are, and how each is drawn."""

    host_rows: NDArray[np.int64]
    """[R] ascending."""
    rows: torch.Tensor | None
    """int64 [R] the same on the device; None = every row."""
    filters: Filters
    """[R]"""
    seeds: torch.Tensor
    """uint64 [R]"""
    values: torch.Tensor
    """[R] whatever else is needed of each."""

    def part(self, values: torch.Tensor) -> torch.Tensor:
        """[R, ...] of [n, ...]."""
        return values if self.rows is None else values[self.rows]

    def among(self, others: Callable[[], torch.Tensor], values: torch.Tensor) -> torch.Tensor:
        """[n] with values [R] at the drawn rows. others: makes what the greedy rows have, [n], if there are any."""
        return values if self.rows is None else others().index_copy_(0, self.rows, values)


def drawn_rows(
    upload: Uploader,
    inputs: SamplerInputs,
    sequence_rows: NDArray[np.int64],
    values: NDArray[Any],
    *,
    seed_offset: int = 0,
) -> DrawnRows | None:
    """The drawn ones of rows that belong to these sequences [n]; None if there are none.

    values: [n] whatever else is needed of the rows; shipped with the rest in one copy. seed_offset: added to every
    seed, modulo 2**64.
    """
    is_drawn = ~inputs.is_greedy[sequence_rows]
    rows = np.flatnonzero(is_drawn)
    if not rows.size:
        return None
    parameters = inputs.parameters[sequence_rows[rows]]
    seeds = parameters["seed"] + np.uint64(seed_offset)
    every = rows[:0] if rows.size == sequence_rows.size else rows
    *filters, moved_seeds, moved_values, moved_rows = upload.all(
        [*(parameters[name] for name in _FILTERS), seeds, values[rows], every]
    )
    temperature, top_p, top_k, min_p = filters
    return DrawnRows(
        host_rows=rows,
        rows=moved_rows if every.size else None,
        filters=(temperature, top_p, top_k, min_p),
        seeds=moved_seeds,
        values=moved_values,
    )
