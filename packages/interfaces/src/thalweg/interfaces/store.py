"""Contracts of prefix reuse: which prefixes are stored, and where their bytes lie."""

from __future__ import annotations

from collections.abc import Collection, Sequence
from concurrent.futures import Future
from dataclasses import dataclass
from typing import Protocol, runtime_checkable

BlobItem = tuple[bytes, Sequence[memoryview]]
"""A key and the buffers that hold, or will receive, the object's bytes one after another; none of them is copied."""


@dataclass(frozen=True, slots=True)
class PrefixMatch:
    """What an index knows of a prompt's leading chunks."""

    num_chunks: int
    """Leading chunks whose blocks are durable."""
    anchors: tuple[int, ...] = ()
    """Ascending counts of chunks, at most num_chunks, at whose end the window state is durable too."""


@runtime_checkable
class PrefixIndex(Protocol):
    """Which prefixes a store holds, keyed by the hash chain of their chunks. Every call is safe from any thread."""

    def match(self, chunk_keys: Sequence[bytes]) -> PrefixMatch:
        """The longest leading run of keys that are present and not expired; using them keeps them from eviction."""

    def publish(self, chunk_keys: Sequence[bytes], anchors: Collection[int] = (), ttl_class: str = "default") -> None:
        """Announce a chain from its first chunk on, only after its blobs are durable.

        anchors: counts of chunks at whose end the window state is durable. Raises ConfigError for an unknown class.
        """

    def forget(self, chunk_keys: Sequence[bytes]) -> None:
        """Drop keys whose blobs turned out to be missing; chains that run through them end before them."""

    def pin(self, chunk_keys: Sequence[bytes]) -> int:
        """Keep leading keys that are present from eviction and expiry; how many were pinned."""

    def release(self, chunk_keys: Sequence[bytes]) -> None:
        """Undo one `pin` of exactly these keys."""


@runtime_checkable
class BlobStore(Protocol):
    """Batched storage of byte objects.

    A key that fails, whatever the reason, is False in the answer: a miss, never an error of the batch or of the request
    behind it. The buffers of an item belong to the store until the future is done. Safe from any thread.
    """

    def put(self, items: Sequence[BlobItem], ttl_s: float | None = None) -> Future[list[bool]]:
        """Store each key's segments; True once an object is durable, False where it was not stored.

        ttl_s: seconds after which an object may be dropped, None never. Raises ConfigError unless it is above 0.
        """

    def get(self, items: Sequence[BlobItem]) -> Future[list[bool]]:
        """Fill each key's segments; True where an object of exactly their size was found whole.

        The buffers of a False item hold anything.
        """

    def contains(self, keys: Sequence[bytes]) -> list[bool]:
        """Which keys are durable now, as far as is known without reading them."""

    def close(self) -> None:
        """Finish what was started, then refuse everything as misses."""
