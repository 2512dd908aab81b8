"""Rotary tables on the device: every position's cosines and sines, from the reference op, gathered step by step.

A device's own cosine differs in the last bit now and then, and a rotated key that differs in one bit is stored as
another key. So the tables come from the CPU once, and both sides rotate by the same numbers.
"""

from __future__ import annotations

from typing import NamedTuple

import torch

from thalweg.kernels import bind
from thalweg.model.config import ModelConfig
from thalweg.model.numerics import Numerics
from thalweg.model.rope import RotaryTables


class RotaryRows(NamedTuple):
    """Cosine and sine of n positions, float32 [n, rope dim / 2]."""

    cos: torch.Tensor
    sin: torch.Tensor


class DeviceRotaryTables:
    """Tables by layer kind: window-only layers have the plain base, all others their own with YaRN."""

    def __init__(self, config: ModelConfig, num_positions: int, device: torch.device) -> None:
        """num_positions: 0..num_positions - 1 may be asked for; a table takes 4 * rope dim bytes per position."""
        reference = RotaryTables(config, Numerics("quant", "float32", bind("cpu")))
        positions = torch.arange(num_positions)
        self._tables = {}
        for ratio in {min(ratio, 1) for ratio in config.compress_ratios}:
            rotary = reference.at(positions, ratio)
            self._tables[ratio] = torch.stack((rotary.cos, rotary.sin)).to(device)

    def at(self, positions: torch.Tensor, ratio: int) -> RotaryRows:
        """The rows of these positions int [n] for layers of this compress ratio."""
        return RotaryRows(*self._tables[min(ratio, 1)].index_select(1, positions))
