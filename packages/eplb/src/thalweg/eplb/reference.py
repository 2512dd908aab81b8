"""The published planner: copies and ranks by the sum over steps of the peak load, to the last slot."""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING

import numpy as np

from thalweg.eplb._core import plan_reference
from thalweg.eplb.placement import Placement

if TYPE_CHECKING:
    from thalweg.eplb.history import History


@dataclass(frozen=True, slots=True)
class ReferencePlanner:
    """The algorithm of DeepInfer 0.1.0, slot for slot, its defect with exact ties included.

    When two experts tie for the peak of a step, copying either gains nothing, and all further copies go to expert 0.
    Per-copy loads are float32, as there; sums over steps are float64.
    """

    def plan(self, history: History, num_slots: int, num_ranks: int, current: Placement | None) -> Placement:
        _, num_layers, num_experts = history.shape
        held, order = np.empty((2, num_layers, num_slots), np.int32)
        for layer in range(num_layers):
            counts = np.ascontiguousarray(history[:, layer], np.float32)
            held[layer], order[layer] = plan_reference(counts, num_slots, num_ranks)
        return Placement.from_slots(held, num_ranks, num_experts, order)
