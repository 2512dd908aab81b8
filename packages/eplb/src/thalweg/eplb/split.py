"""Splitting each step's tokens over the copies of the experts, by what every rank has to do in that step.

A placement alone splits an expert's tokens evenly over its copies, which is right on the mean only. Knowing the counts
of a step, the tokens of each replicated expert are poured like water over the ranks that hold it, into the lowest load
first; doing so for one expert after another, a few times over, comes close to the smallest possible peak.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Any, Protocol

import numpy as np
from numpy.typing import NDArray

from thalweg.eplb._checks import require_int32, require_integer
from thalweg.eplb._core import Splitter
from thalweg.eplb.placement import check_placement
from thalweg.interfaces import ConfigError

if TYPE_CHECKING:
    from thalweg.eplb.placement import Placement

DEFAULT_SWEEPS = 2
"""Gets nine tenths of what can be gained, for a few microseconds per layer."""


class TokenSplit(Protocol):
    """What splits tokens: on the host as here, or a kernel that takes and gives device arrays.

    Whole tokens are split, in a fixed order, so that all ranks come to the same result from the same counts without
    talking about it. `thalweg.eplb.split_reference` is the rule, slot for slot:

    1. On each rank the first slot with an expert stands for all of its slots there; the others get nothing.
    2. Begin evenly: n tokens over m ranks are n // m each and one more on the first n % m ranks.
    3. As often as there are sweeps, for every expert on several ranks, lower ones first: take its tokens off the loads
       of its ranks, and pour them over these, ordered by load and then by rank. The lowest w ranks come to one level,
       where w is the least number whose common level is no higher than the next load; what does not divide by w goes
       one each to the first of them.
    """

    def split_layer(self, layer: int, tokens: Any) -> Any:
        """[slots] int32 tokens that each slot of the layer gets. tokens: [experts] int32, of all ranks together."""


class StepSplit:
    """TokenSplit on the host, for one placement.

    All tokens of an expert are given out, whole ones. Raises ConfigError for what is no placement or number of sweeps.
    """

    def __init__(self, placement: Placement, sweeps: int = DEFAULT_SWEEPS) -> None:
        check_placement("placement", placement)
        check_sweeps(sweeps)
        self._sweeps = sweeps
        self._num_layers = placement.num_layers
        self._core = Splitter(placement.logical_of_physical, placement.num_ranks, placement.num_experts)

    def split(self, tokens: NDArray[Any]) -> NDArray[np.int32]:
        """[layers, slots] tokens that each slot gets.

        tokens: [layers, experts] integers >= 0 routed by all ranks together. Raises ConfigError for anything else.
        """
        try:
            return self._core.split(as_int32(tokens), self._sweeps)
        except ValueError as error:
            raise ConfigError(str(error)) from error

    def split_layer(self, layer: int, tokens: NDArray[Any]) -> NDArray[np.int32]:
        """[slots] tokens that each slot of one layer gets, since a step knows the counts of a layer when it is there.

        tokens: [experts], otherwise like `split`. Raises ConfigError for a layer that the placement does not have, too.
        """
        if type(layer) is not int or not 0 <= layer < self._num_layers:  # the quick half of the check
            require_integer("layer", layer, 0, self._num_layers - 1)
        try:
            return self._core.split_layer(layer, as_int32(tokens), self._sweeps)
        except ValueError as error:
            raise ConfigError(str(error)) from error


def check_sweeps(sweeps: int) -> None:
    """ConfigError unless this is a number of sweeps; with 0 the split is even."""
    require_integer("sweeps", sweeps, 0, 1024)


def as_int32(tokens: NDArray[Any]) -> NDArray[np.int32]:
    """The counts as a contiguous int32 array; ConfigError where they are no array of integers of its range."""
    if not isinstance(tokens, np.ndarray) or tokens.dtype != np.int32:
        require_int32("tokens", tokens)
    return np.ascontiguousarray(tokens, np.int32)
