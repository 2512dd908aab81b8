"""The default planner: copies by their largest loads, ranks by a search that swaps slots and weighs what it moves."""

from __future__ import annotations

import math
from dataclasses import dataclass
from typing import TYPE_CHECKING

import numpy as np

from thalweg.eplb._checks import require_integer, require_number
from thalweg.eplb._core import search_layers
from thalweg.eplb.placement import Placement
from thalweg.eplb.transfer import keep_in_place
from thalweg.interfaces import ConfigError

if TYPE_CHECKING:
    from numpy.typing import DTypeLike

    from thalweg.eplb.history import History

_MOST_PROPOSALS = 2**53
"""Up to which the search counts them without loss as parts of a whole, in float64."""
_READ_AS_IT_IS = ("uint16", "int32", "int64", "float32", "float64")


@dataclass(frozen=True, slots=True)
class SearchPlanner:
    """Searches from a fresh placement and from the current one; the same result on every machine.

    The arithmetic has a fixed order and the generator is seeded, so the plan depends on the arguments alone.
    """

    proposals: int = 1_600
    """Slots to propose for a swap per layer, over all starts: what a plan may cost. Each meets all other slots. 0: the
    starts as they are."""

    move_price: float = 0.05
    """What moving every slot of a layer must lower its peak load by, in parts of the mean rank load."""

    min_gain: float = 0.02
    """A layer stays as it is, slot for slot, unless its peak load over the history falls by this part."""

    seed: int = 0

    def __post_init__(self) -> None:
        for name, least, most in (("proposals", 0, _MOST_PROPOSALS), ("seed", 0, 2**63 - 1)):
            require_integer(name, getattr(self, name), least, most)
        require_number("move_price", self.move_price, 0, math.inf)
        require_number("min_gain", self.min_gain, 0, 1)

    def plan(self, history: History, num_slots: int, num_ranks: int, current: Placement | None) -> Placement:
        held = None if current is None else current.logical_of_physical
        how = (self.proposals, self.move_price, self.min_gain, self.seed)
        try:
            planned = search_layers(_readable(history), num_slots, num_ranks, held, *how)
        except ValueError as error:
            raise ConfigError(str(error)) from error
        if current is None:
            return Placement.from_slots(planned, num_ranks, history.shape[2])
        changed = (planned != current.logical_of_physical).any(axis=1)
        for layer in np.flatnonzero(changed):
            planned[layer] = keep_in_place(current.logical_of_physical[layer], planned[layer], num_ranks)
        return current.with_layers(Placement.from_slots(planned, num_ranks, history.shape[2]), changed)


def _readable(history: History) -> History:
    """The history contiguous and in a type that the search reads."""
    dtype: DTypeLike = history.dtype
    if history.dtype.name not in _READ_AS_IT_IS:
        dtype = np.int64 if np.can_cast(history.dtype, np.int64) else np.float64
    return np.ascontiguousarray(history, dtype)
