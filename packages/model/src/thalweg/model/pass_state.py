"""What the layers of one forward pass hand to each other besides the trunk."""

from __future__ import annotations

from typing import Generic, Protocol, TypeVar

import torch

from thalweg.model.metadata import ForwardBatch
from thalweg.model.replay import ConsumerPass
from thalweg.model.target_features import TargetFeatures
from thalweg.model.trace import Trace

Rows = TypeVar("Rows")
_Rows_co = TypeVar("_Rows_co", covariant=True)


class Tables(Protocol[_Rows_co]):
    """Cosines and sines by position."""

    def at(self, positions: torch.Tensor, ratio: int) -> _Rows_co:
        """Those of positions [n], for layers of this compress ratio."""


class EntryPositions(Protocol):
    """A memory that knows which entries a pass adds."""

    def entry_positions(self, ratio: int) -> torch.Tensor:
        """The positions of the entries that are added to streams of this ratio."""


Memory = TypeVar("Memory", bound=EntryPositions)


class PassState(Generic[Rows, Memory]):
    """Shared within one forward pass and dropped after it."""

    __slots__ = (
        "_consumers",
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
        memory: Memory,
        tables: Tables[Rows],
        trace: Trace | None = None,
        features: TargetFeatures | None = None,
        consumers: ConsumerPass[Memory] | None = None,
    ) -> None:
        """consumers: what layers from the first consumer on run over, where that is not `batch` over `memory`."""
        self._tables = tables
        self.trace = trace
        self.features = features
        self._consumers = consumers
        self._begin(batch, memory)

    def _begin(self, batch: ForwardBatch, memory: Memory) -> None:
        self.batch = batch
        self.memory = memory
        self._row_rotary: dict[bool, Rows] = {}
        self._entry_rotary: dict[int, Rows] = {}
        self.selection: torch.Tensor | None = None
        """int32 [T, index_topk] entries chosen by the last indexer, ascending, -1 fill."""
        self.blocks: torch.Tensor | None = None
        """int32 [T, topk blocks] candidate blocks published by the candidate source."""
        self.latents: torch.Tensor | None = None
        """[E, D] normed, unrotated latents of the entries that the last KV source produced in this pass."""

    def row_rotary(self, ratio: int) -> Rows:
        """Of the batch's own positions, for layers of this ratio. All layers of one ratio rotate the same."""
        is_compressed = ratio > 0
        if is_compressed not in self._row_rotary:
            self._row_rotary[is_compressed] = self._tables.at(self.batch.positions, ratio)
        return self._row_rotary[is_compressed]

    def entry_rotary(self, ratio: int) -> Rows:
        """Of the entries that this pass adds to streams of this ratio."""
        if ratio not in self._entry_rotary:
            self._entry_rotary[ratio] = self._tables.at(self.memory.entry_positions(ratio), ratio)
        return self._entry_rotary[ratio]

    def enter_consumers(self, trunk: torch.Tensor, read: torch.Tensor) -> tuple[torch.Tensor, torch.Tensor] | None:
        """What the consumer layers go on with of trunk [T, m, h] and another tensor of its rows; None = with all.

        To be called at the first consumer, between the streams, which every row completes, and its queries. That layer
        is an index source, so nothing selected is carried over.
        """
        if self._consumers is None:
            return None
        consumers = self._consumers
        self._begin(consumers.batch, consumers.memory)
        if self.features is not None:
            self.features.keep(consumers.kept)
        return consumers.kept(trunk), consumers.kept(read)
