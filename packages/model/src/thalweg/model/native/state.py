"""The state of a pass of the native model, and the residual that its layers hand on."""

from __future__ import annotations

from typing import NamedTuple

import torch

from thalweg.kernels import BoundOps, ReadRows
from thalweg.model.metadata import ForwardBatch
from thalweg.model.native.memory import NativeMemory
from thalweg.model.native.rope import DeviceRotaryTables, RotaryRows
from thalweg.model.pass_state import PassState
from thalweg.model.replay import ConsumerPass
from thalweg.model.target_features import TargetFeatures
from thalweg.model.trace import Trace


class Residual(NamedTuple):
    """What one sub-layer leaves to the next."""

    trunk: torch.Tensor
    """bfloat16 [T, m, h]"""
    read: torch.Tensor
    """float32 [T, m] weights with which the next sub-layer reads the trunk."""
    rows: ReadRows
    """The trunk read with these weights and normed by the next sub-layer's norm."""


class NativeState(PassState[RotaryRows, NativeMemory]):
    """What the layers of one forward pass hand to each other, and the ops that they run."""

    __slots__ = ("ops",)

    def __init__(
        self,
        ops: BoundOps,
        batch: ForwardBatch,
        memory: NativeMemory,
        tables: DeviceRotaryTables,
        trace: Trace | None = None,
        features: TargetFeatures | None = None,
        consumers: ConsumerPass[NativeMemory] | None = None,
    ) -> None:
        super().__init__(batch, memory, tables, trace, features, consumers)
        self.ops = ops

    def record(self, name: str, layer: int, value: torch.Tensor) -> None:
        """Show a value to the trace, where there is one."""
        if self.trace is not None:
            self.trace.record(name, layer, value)
