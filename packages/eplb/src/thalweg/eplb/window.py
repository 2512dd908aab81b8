"""The counting window: how many tokens each logical expert got in the last steps."""

from __future__ import annotations

from typing import Any

import numpy as np
from numpy.typing import NDArray

from thalweg.eplb._checks import require_array, require_int32, require_integer, require_within
from thalweg.interfaces import ConfigError


class CountingWindow:
    """One rank's counts of the last `num_steps` steps, in logical experts.

    Slots become logical experts when a row is written, under the placement of its own step: however often experts move,
    no row is ever attributed to another expert. The sum of all ranks' histories is what a planner takes.
    """

    def __init__(self, num_steps: int, num_layers: int, num_experts: int) -> None:
        sizes = {"num_steps": num_steps, "num_layers": num_layers, "num_experts": num_experts}
        for name, value in sizes.items():
            require_integer(name, value, 1)
        self._rows = np.zeros((num_steps, num_layers, num_experts), np.int32)
        self._num_recorded = 0

    @property
    def num_recorded(self) -> int:
        """Steps that `history` has."""
        return min(self._num_recorded, len(self._rows))

    def record(self, tokens_of_slot: NDArray[Any], logical_of_slot: NDArray[Any]) -> None:
        """Add a step; the oldest one leaves a full window.

        tokens_of_slot: [layers, slots] integers >= 0, what each local slot received in this step. logical_of_slot:
        [layers, slots] the logical expert that was in it. Raises ConfigError for what are no arrays of integers, and
        other shapes or values.
        """
        _, num_layers, num_experts = self._rows.shape
        for name, values in (("tokens_of_slot", tokens_of_slot), ("logical_of_slot", logical_of_slot)):
            require_array(name, values, 2, f"[{num_layers} layers, local slots]")
        if tokens_of_slot.shape != logical_of_slot.shape or tokens_of_slot.shape[:1] != (num_layers,):
            raise ConfigError(
                f"tokens_of_slot is {tokens_of_slot.shape} and logical_of_slot {logical_of_slot.shape}; both must be"
                f" [{num_layers} layers, local slots]"
            )
        require_int32("tokens_of_slot", tokens_of_slot)
        require_within("logical_of_slot", logical_of_slot, 0, num_experts - 1)
        tokens = np.zeros((num_layers, num_experts), np.int64)
        np.add.at(tokens, (np.arange(num_layers)[:, None], logical_of_slot), tokens_of_slot.astype(np.int64))
        require_int32("the sum over copies of an expert", tokens)
        self._rows[self._num_recorded % len(self._rows)] = tokens
        self._num_recorded += 1

    def history(self) -> NDArray[np.int32]:
        """A copy of the window, [recorded steps, layers, experts], oldest step first."""
        if self._num_recorded <= len(self._rows):
            return self._rows[: self._num_recorded].copy()
        return np.roll(self._rows, -(self._num_recorded % len(self._rows)), axis=0)
