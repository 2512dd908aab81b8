"""The classic planner: balance the mean load of each rank, whatever experts are hot together."""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING

import numpy as np

from thalweg.eplb.placement import Placement

if TYPE_CHECKING:
    from numpy.typing import NDArray

    from thalweg.eplb.history import History


@dataclass(frozen=True, slots=True)
class GreedyPlanner:
    """Copies what has the largest mean load per copy; then each copy, heaviest first, goes to the lightest rank."""

    def plan(self, history: History, num_slots: int, num_ranks: int, current: Placement | None) -> Placement:
        loads = history.sum(axis=0, dtype=np.float64)
        held = np.empty((len(loads), num_slots), np.int32)
        for layer, load in enumerate(loads):
            experts, copies = replicate_by_mean(load, num_slots)
            held[layer, pack_by_mean(load[experts] / copies[experts], num_ranks)] = experts
        return Placement.from_slots(held, num_ranks, history.shape[2])


def replicate_by_mean(load: NDArray[np.float64], num_slots: int) -> tuple[NDArray[np.int32], NDArray[np.int32]]:
    """Which expert each copy is of [slots], and the number of copies of each expert [experts]; ties: the lowest."""
    copies = np.ones(len(load), np.int32)
    experts = np.arange(num_slots, dtype=np.int32)
    for copy in range(len(load), num_slots):
        experts[copy] = np.argmax(load / copies)
        copies[experts[copy]] += 1
    return experts, copies


def pack_by_mean(load: NDArray[np.float64], num_ranks: int) -> NDArray[np.int64]:
    """[copies] the slot of each copy of this load: heaviest first, each to the lightest rank with room."""
    slots_per_rank = len(load) // num_ranks
    if slots_per_rank == 1:
        return np.arange(len(load))
    rank_load, used = np.zeros(num_ranks), np.zeros(num_ranks, np.int64)
    slot = np.empty(len(load), np.int64)
    for copy in np.argsort(-load, kind="stable"):
        rank = int(np.argmin(rank_load))
        slot[copy] = rank * slots_per_rank + used[rank]
        used[rank] += 1
        rank_load[rank] = rank_load[rank] + load[copy] if used[rank] < slots_per_rank else np.inf
    return slot
