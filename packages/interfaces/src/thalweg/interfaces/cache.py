"""Contracts of the cache: the layout that a store needs, and the pools."""

from __future__ import annotations

import enum
from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any, Protocol, runtime_checkable


class Fit(enum.IntEnum):
    """Whether a pool can serve a request."""

    NEVER = 0
    LATER = 1
    OK = 2


@runtime_checkable
class BlockAllocator(Protocol):
    """A reference-counted pool of ids 1..capacity-1; id 0 means none. Every call is safe from any thread."""

    @property
    def num_free(self) -> int: ...

    @property
    def capacity(self) -> int:
        """Number of ids, the null id 0 included."""

    def can_allocate(self, count: int) -> Fit:
        """Whether `allocate(count)` would succeed now, later or never."""

    def allocate(self, count: int) -> list[int]:
        """Take ids from the head of the free list. Raises CapacityError when fewer are free."""

    def release(self, ids: Sequence[int]) -> None:
        """Give ids back, last first; a pinned id stays until its last holder releases it."""

    def pin(self, ids: Sequence[int]) -> None:
        """Add a holder to each id. Raises CapacityError for a free one."""


@dataclass(frozen=True, slots=True)
class LayerSpan:
    """The bytes of one layer inside a block or a state slot."""

    layer: int
    offset: int
    length: int


@dataclass(frozen=True, slots=True)
class CacheLayout:
    """How bytes are arranged in the two pools; computed from the config, the same on every rank."""

    tokens_per_block: int
    block_bytes: int
    """Stride between blocks, padding included."""
    block_payload_bytes: int
    slot_bytes: int
    """Stride between state slots, padding included."""
    slot_stored_bytes: int
    """Leading bytes of a slot that a store must keep."""
    window_size: int
    ring_length: int
    """Positions in a window ring; the slot of position p is p mod ring_length."""
    compressor_ring_length: int
    block_spans: tuple[LayerSpan, ...]
    """Layers with bytes in a block, in order."""
    window_spans: tuple[LayerSpan, ...]
    """Window ring of each run-time layer inside a slot."""
    compressor_spans: tuple[LayerSpan, ...]
    """Compressor state of the pooling layers inside a slot."""
    fingerprint: str
    """Changes whenever a byte could mean something else."""


class CacheViews(Protocol):
    """Typed views of the two byte pools, one per layer; torch tensors that share the pools' memory."""

    @property
    def layout(self) -> CacheLayout: ...

    def window(self, layer: int) -> Any:
        """uint8 [slots, ring_length, 1, record_bytes]: the window ring of a layer."""

    def main(self, layer: int) -> Any:
        """uint8 [blocks, tokens_per_block // ratio, 1, record_bytes]: compressed KV of a KV-source layer."""

    def index_keys(self, layer: int) -> Any:
        """uint8 [blocks, tokens_per_block // ratio, 1, record_bytes]: index keys of an index-key-source layer."""

    def compressor(self, layer: int) -> Any:
        """float [slots, compressor_ring_length, 2, head_dim]: scores (0) and latents (1) of a pooling layer."""
