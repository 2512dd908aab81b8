"""What the layers of one forward pass hand to each other besides the trunk."""

from __future__ import annotations

from typing import NamedTuple

import torch

from thalweg.kernels import BoundOps, ReadRows
from thalweg.model.metadata import ForwardBatch
from thalweg.model.native.memory import NativeMemory
from thalweg.model.native.rope import DeviceRotaryTables, RotaryRows
from thalweg.model.pass_rotary import PassRotary
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


class NativeState(PassRotary[RotaryRows]):
    """Shared within one forward pass and dropped after it."""

    __slots__ = (
        "batch",
        "blocks",
        "features",
        "latents",
        "memory",
        "ops",
        "selection",
        "trace",
    )

    def __init__(
        self,
        ops: BoundOps,
        batch: ForwardBatch,
        memory: NativeMemory,
        tables: DeviceRotaryTables,
        trace: Trace | None = None,
        features: TargetFeatures | None = None,
    ) -> None:
        super().__init__(tables, batch.positions, memory)
        self.ops = ops
        self.batch = batch
        self.memory = memory
        self.trace = trace
        self.features = features
        self.selection: torch.Tensor | None = None
        """int32 [T, index_topk] entries chosen by the last indexer, ascending, -1 fill."""
        self.blocks: torch.Tensor | None = None
        """int32 [T, topk blocks] candidate blocks published by the candidate source."""
        self.latents: torch.Tensor | None = None
        """bfloat16 [E, D] normed, unrotated latents of the entries that the last KV source produced in this pass."""

    def record(self, name: str, layer: int, value: torch.Tensor) -> None:
        """Show a value to the trace, where there is one."""
        if self.trace is not None:
            self.trace.record(name, layer, value)
