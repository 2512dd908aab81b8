"""What the layers of one forward pass hand to each other besides the trunk."""

from __future__ import annotations

import torch

from thalweg.model.memory import AttentionMemory
from thalweg.model.metadata import ForwardBatch
from thalweg.model.pass_rotary import PassRotary
from thalweg.model.rope import Rotary, RotaryTables
from thalweg.model.target_features import TargetFeatures
from thalweg.model.trace import Trace


class ForwardState(PassRotary[Rotary]):
    """Shared within one forward pass and dropped after it."""

    __slots__ = (
        "batch",
        "blocks",
        "features",
        "latents",
        "memory",
        "selection",
        "trace",
    )

    def __init__(
        self,
        batch: ForwardBatch,
        memory: AttentionMemory,
        tables: RotaryTables,
        trace: Trace | None,
        features: TargetFeatures | None = None,
    ) -> None:
        super().__init__(tables, batch.positions, memory)
        self.batch = batch
        self.memory = memory
        self.trace = trace
        self.features = features
        self.selection: torch.Tensor | None = None
        """int32 [T, index_topk] entries chosen by the last indexer, ascending, -1 fill."""
        self.blocks: torch.Tensor | None = None
        """int32 [T, topk blocks] candidate blocks published by the candidate source."""
        self.latents: torch.Tensor | None = None
        """[E, D] normed, unrotated latents of the entries that the last KV source produced in this pass."""
