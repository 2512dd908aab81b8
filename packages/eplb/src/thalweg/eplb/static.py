"""The planner that looks at nothing: what an engine starts with, to compare others with."""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING

from thalweg.eplb.placement import Placement

if TYPE_CHECKING:
    from thalweg.eplb.history import History


@dataclass(frozen=True, slots=True)
class StaticPlanner:
    """The initial placement, whatever the loads."""

    def plan(self, history: History, num_slots: int, num_ranks: int, current: Placement | None) -> Placement:
        _, num_layers, num_experts = history.shape
        return Placement.initial(num_layers, num_experts, num_slots, num_ranks)
