"""Splitting each step's tokens over the copies of the experts, by what every rank has to do in that step.

A placement alone splits an expert's tokens evenly over its copies, which is right on the mean only. Knowing the counts
of a step, the tokens of each replicated expert are poured like water over the ranks that hold it, into the lowest load
first; doing so for one expert after another, a few times over, comes close to the smallest possible peak.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Any, Protocol

import numpy as np
from numpy.typing import NDArray

from thalweg.eplb._core import Splitter
from thalweg.interfaces import ConfigError, shown

if TYPE_CHECKING:
    from thalweg.eplb.placement import Placement

DEFAULT_SWEEPS = 2
"""Gets nine tenths of what can be gained, for a few microseconds per layer."""


class TokenSplit(Protocol):
    """What splits tokens: on the host as here, or a kernel that takes and gives device arrays."""

    def split(self, tokens: Any) -> Any:
        """[layers, slots] int32 tokens that each slot gets. tokens: [layers, experts] int32, of all ranks together."""


class StepSplit:
    """TokenSplit on the host, for one placement.

    All tokens of an expert are given out, whole ones. Where a rank has several copies of an expert, the first one gets
    all that the rank gets. The result depends on nothing but the input, so ranks need not talk about it.
    """

    def __init__(self, placement: Placement, sweeps: int = DEFAULT_SWEEPS) -> None:
        check_sweeps(sweeps)
        self._shape = placement.num_layers, placement.num_experts
        self._sweeps = sweeps
        self._core = Splitter(placement.logical_of_physical, placement.num_ranks, placement.num_experts)

    def split(self, tokens: NDArray[Any]) -> NDArray[np.int32]:
        """[layers, slots] tokens that each slot gets.

        tokens: [layers, experts] integers >= 0 routed by all ranks together. Raises ConfigError for anything else.
        """
        return self._core.split(checked_tokens(tokens, self._shape), self._sweeps)


def check_sweeps(sweeps: int) -> None:
    """ConfigError unless this is a number of sweeps; with 0 the split is even."""
    if isinstance(sweeps, bool) or not isinstance(sweeps, int) or not 0 <= sweeps <= 1024:
        raise ConfigError(f"sweeps is {shown(sweeps)}; it must be an integer in 0..1024")


def checked_tokens(tokens: NDArray[Any], shape: tuple[int, int]) -> NDArray[np.int32]:
    """The counts as a contiguous int32 array. shape: (layers, experts)."""
    if tokens.shape != shape:
        raise ConfigError(f"tokens is {tokens.shape}; it must be [{shape[0]} layers, {shape[1]} experts]")
    if tokens.dtype.kind not in "iu" or (tokens.size and tokens.min() < 0):
        raise ConfigError(f"tokens is {tokens.dtype} with negative or fractional counts; it must have integers >= 0")
    most = np.iinfo(np.int32).max
    may_exceed = tokens.size > 0 and int(tokens.max()) * shape[1] > most  # a sum takes longer than the split of a layer
    if may_exceed and (tokens.sum(axis=1, dtype=np.uint64) > most).any():
        raise ConfigError(f"tokens has a layer with more than {most} tokens in one step")
    return np.ascontiguousarray(tokens, np.int32)
