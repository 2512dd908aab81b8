"""How many physical slots a layout has, and what is in them before anything was counted."""

from __future__ import annotations

import logging
from enum import Enum
from typing import TYPE_CHECKING

import numpy as np

from thalweg.eplb._checks import require_integer
from thalweg.interfaces import ConfigError

if TYPE_CHECKING:
    from numpy.typing import NDArray

_log = logging.getLogger(__name__)

LARGEST_SIZE = 65_536
"""Experts, slots, ranks or layers of a layout, at most: far above any model, far below what int32 tables can number."""


class Workload(Enum):
    """What a group of ranks computes; decides how many copies are worth their memory."""

    PREFILL = 4
    """Four redundant slots per rank."""
    DECODE = 1
    """One redundant slot per rank."""

    def redundant_slots(self, num_ranks: int) -> int:
        """The least number of redundant slots to ask for, over all ranks."""
        return self.value * num_ranks


def redundant_slots(num_experts: int, minimum: int, num_ranks: int, *, layout: str = "experts") -> int:
    """The smallest number of redundant slots, at least `minimum`, that lets every rank own equally many slots.

    layout: names the layers in the warning that is logged when the minimum is not met exactly. Raises ConfigError for
    a size outside 1..LARGEST_SIZE and a minimum outside 0..LARGEST_SIZE.
    """
    for name, value, least in (("num_experts", num_experts, 1), ("minimum", minimum, 0), ("num_ranks", num_ranks, 1)):
        require_integer(name, value, least, LARGEST_SIZE)
    redundant = minimum + -(num_experts + minimum) % num_ranks
    if redundant != minimum:
        _log.warning(
            "%s: %d redundant slots instead of %d, so that %d slots divide over %d ranks",
            *(layout, redundant, minimum, num_experts + redundant, num_ranks),
        )
    return redundant


def initial_slots(num_layers: int, num_experts: int, num_slots: int) -> NDArray[np.int32]:
    """[layers, slots] logical expert of each slot before the first plan: all in order, then again from the first."""
    return np.tile(np.arange(num_slots, dtype=np.int32) % np.int32(num_experts), (num_layers, 1))


def check_shape(num_experts: int, num_slots: int, num_ranks: int) -> None:
    """ConfigError unless the slots hold every expert, divide over the ranks, and no size is above LARGEST_SIZE."""
    for name, value in (("num_experts", num_experts), ("num_slots", num_slots), ("num_ranks", num_ranks)):
        require_integer(name, value, 1, LARGEST_SIZE)
    if num_slots < num_experts:
        raise ConfigError(f"num_slots is {num_slots}; {num_experts} experts need at least as many")
    if num_slots % num_ranks:
        raise ConfigError(f"num_slots is {num_slots}; it must be a multiple of num_ranks, {num_ranks}")
