"""What the layers of one forward pass hand to each other besides the trunk."""

from __future__ import annotations

import torch

from thalweg.model.memory import AttentionMemory
from thalweg.model.metadata import ForwardBatch
from thalweg.model.rope import Rotary, RotaryTables
from thalweg.model.target_features import TargetFeatures
from thalweg.model.trace import Trace


class ForwardState:
    """Shared within one forward pass and dropped after it."""

    __slots__ = (
        "_entry_rotary",
        "_row_rotary",
        "_tables",
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
        self._tables = tables
        self._row_rotary: dict[bool, Rotary] = {}
        self._entry_rotary: dict[int, Rotary] = {}

    def row_rotary(self, ratio: int) -> Rotary:
        """The rotary table of the batch's own positions for layers of this ratio."""
        kind = ratio > 0
        if kind not in self._row_rotary:
            self._row_rotary[kind] = self._tables.at(self.batch.positions, ratio)
        return self._row_rotary[kind]

    def entry_rotary(self, ratio: int) -> Rotary:
        """The rotary table of the entries that this pass adds to streams of this ratio."""
        if ratio not in self._entry_rotary:
            self._entry_rotary[ratio] = self._tables.at(self.memory.entry_positions(ratio), ratio)
        return self._entry_rotary[ratio]
