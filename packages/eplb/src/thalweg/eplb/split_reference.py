"""The split over copies in plain Python: what the compiled one, and any kernel for a device, must equal."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

import numpy as np
from numpy.typing import NDArray

from thalweg.eplb.split import DEFAULT_SWEEPS, as_int32, check_sweeps

if TYPE_CHECKING:
    from thalweg.eplb.placement import Placement


class StepSplit:
    """Like `thalweg.eplb.StepSplit`, slower, and without its checks."""

    def __init__(self, placement: Placement, sweeps: int = DEFAULT_SWEEPS) -> None:
        check_sweeps(sweeps)
        self._placement = placement
        self._sweeps = sweeps

    def split(self, tokens: NDArray[Any]) -> NDArray[np.int32]:
        return np.array([self.split_layer(layer, row) for layer, row in enumerate(tokens)])

    def split_layer(self, layer: int, tokens: NDArray[Any]) -> NDArray[np.int32]:
        return np.array(self._split(layer, as_int32(tokens).tolist()), np.int32)

    def _split(self, layer: int, tokens: list[int]) -> list[int]:
        loads = [0] * self._placement.num_ranks
        shares = [0] * self._placement.num_slots
        copies = [self._copies(layer, expert) for expert in range(len(tokens))]
        for count, slots in zip(tokens, copies, strict=True):
            each, more = divmod(count, len(slots))
            for index, (rank, slot) in enumerate(slots.items()):
                shares[slot] = each + (index < more)
                loads[rank] += shares[slot]
        for _ in range(self._sweeps):
            for count, slots in zip(tokens, copies, strict=True):
                for rank, slot in slots.items():
                    loads[rank] -= shares[slot]
                for rank, share in pour(count, {rank: loads[rank] for rank in slots}).items():
                    shares[slots[rank]] = share
                    loads[rank] += share
        return shares

    def _copies(self, layer: int, expert: int) -> dict[int, int]:
        """The first slot of the expert on every rank that has it; ranks ascending."""
        slots = np.flatnonzero(self._placement.logical_of_physical[layer] == expert).tolist()
        first = {slot // self._placement.slots_per_rank: slot for slot in reversed(slots)}
        return dict(sorted(first.items()))


def pour(tokens: int, loads: dict[int, int]) -> dict[int, int]:
    """How many tokens each rank gets when they are poured over `loads`, by rank, into the lowest first.

    Ranks that get any end level; what does not divide goes one each to the ones that were lowest, lower ranks first.
    """
    order = sorted(loads, key=lambda rank: (loads[rank], rank))
    wet = 1
    while wet < len(order) and tokens + sum(loads[rank] for rank in order[:wet]) > loads[order[wet]] * wet:
        wet += 1
    level, more = divmod(tokens + sum(loads[rank] for rank in order[:wet]), wet)
    shares = {rank: level - loads[rank] + (place < more) for place, rank in enumerate(order[:wet])}
    return {rank: shares.get(rank, 0) for rank in loads}
