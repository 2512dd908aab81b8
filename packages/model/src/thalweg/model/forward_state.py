"""What the layers of one forward pass hand to each other besides the trunk."""

from __future__ import annotations

import torch

from thalweg.model.memory import AttentionMemory
from thalweg.model.metadata import ForwardBatch
from thalweg.model.pass_rotary import PassRotary
from thalweg.model.replay import ConsumerPass
from thalweg.model.rope import Rotary, RotaryTables
from thalweg.model.target_features import TargetFeatures
from thalweg.model.trace import Trace


class ForwardState(PassRotary[Rotary]):
    """Shared within one forward pass and dropped after it."""

    __slots__ = (
        "batch",
        "blocks",
        "consumers",
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
        consumers: ConsumerPass | None = None,
    ) -> None:
        """consumers: what layers from the first consumer on run over, where that is not `batch` over `memory`."""
        super().__init__(tables, batch.positions, memory)
        self.batch = batch
        self.memory = memory
        self.trace = trace
        self.features = features
        self.consumers = consumers
        self.selection: torch.Tensor | None = None
        """int32 [T, index_topk] entries chosen by the last indexer, ascending, -1 fill."""
        self.blocks: torch.Tensor | None = None
        """int32 [T, topk blocks] candidate blocks published by the candidate source."""
        self.latents: torch.Tensor | None = None
        """[E, D] normed, unrotated latents of the entries that the last KV source produced in this pass."""

    def enter_consumers(self, trunk: torch.Tensor, hidden: torch.Tensor) -> tuple[torch.Tensor, torch.Tensor]:
        """Of trunk [T, m, h] and normed rows [T, h] at the first consumer's attention, what its layers go on with.

        The streams must have been completed from all rows before. That layer is an index source, so no selection is
        carried over.
        """
        if self.consumers is None:
            return trunk, hidden
        self.batch, self.memory = self.consumers.batch, self.consumers.memory
        self.selection = self.blocks = self.latents = None
        self.begin_rotary(self.batch.positions, self.memory)
        if self.features is not None:
            self.features.keep(self.consumers.kept)
        return self.consumers.kept(trunk), self.consumers.kept(hidden)
