"""A pool of numbered cache units, counted references, first in first out."""

from __future__ import annotations

import threading
from collections import Counter, deque
from collections.abc import Iterator, Sequence
from contextlib import contextmanager

from thalweg.interfaces import CapacityError, ConfigError, Fit

LOCK_TIMEOUT_S = 20.0


class BlockPool:
    """Hands out the ids 1..capacity-1; id 0 means "none". Cache blocks and state slots both use it.

    Freed ids go to the tail of the free list, so an id rests as long as possible before it is reused. A call that
    raises changes nothing. Every call is safe from any thread, and raises TimeoutError when another one keeps the pool
    to itself for 20 s.
    """

    def __init__(self, capacity: int) -> None:
        """capacity: number of ids, the null id 0 included; at least 1. Raises ConfigError."""
        if not isinstance(capacity, int) or isinstance(capacity, bool) or not 1 <= capacity < 1 << 31:
            raise ConfigError(f"capacity is {capacity!r}; it must be an integer from 1 to {(1 << 31) - 1}")
        self._holders = [0] * capacity
        self._free = deque(range(1, capacity))
        self._lock = threading.Lock()

    @property
    def capacity(self) -> int:
        return len(self._holders)

    @property
    def num_free(self) -> int:
        with self._locked():
            return len(self._free)

    def free_ids(self) -> list[int]:
        """The free ids in the order in which they will be handed out."""
        with self._locked():
            return list(self._free)

    def can_allocate(self, count: int) -> Fit:
        _require_count(count)
        if count >= self.capacity:
            return Fit.NEVER
        return Fit.OK if count <= self.num_free else Fit.LATER

    def allocate(self, count: int) -> list[int]:
        """Take `count` ids. Raises CapacityError when fewer are free, ValueError for a negative count."""
        _require_count(count)
        with self._locked():
            if count > len(self._free):
                raise CapacityError(f"need {count} blocks, {len(self._free)} are free")
            ids = [self._free.popleft() for _ in range(count)]
            for block_id in ids:
                self._holders[block_id] = 1
        return ids

    def release(self, ids: Sequence[int]) -> None:
        """Take one holder off each id, last id first. Raises ValueError for an id that has too few or is no id."""
        with self._locked():
            for block_id, count in Counter(ids).items():
                if self._holders_of(block_id) < count:
                    raise ValueError(f"block {block_id} is released {count} times, it has {self._holders[block_id]}")
            for block_id in reversed(ids):
                self._holders[block_id] -= 1
                if self._holders[block_id] == 0:
                    self._free.append(block_id)

    def pin(self, ids: Sequence[int]) -> None:
        """Add a holder to each id. Raises CapacityError for a free one, ValueError for one that is no id."""
        with self._locked():
            for block_id in ids:
                if self._holders_of(block_id) == 0:
                    raise CapacityError(f"block {block_id} is free and cannot be pinned")
            for block_id in ids:
                self._holders[block_id] += 1

    @contextmanager
    def _locked(self) -> Iterator[None]:
        if not self._lock.acquire(timeout=LOCK_TIMEOUT_S):
            raise TimeoutError(f"the pool was locked for {LOCK_TIMEOUT_S:.0f} s by another thread")
        try:
            yield
        finally:
            self._lock.release()

    def _holders_of(self, block_id: int) -> int:
        if not 0 < block_id < len(self._holders):
            raise ValueError(f"block {block_id} does not exist; ids go from 1 to {len(self._holders) - 1}")
        return self._holders[block_id]


def _require_count(count: int) -> None:
    if count < 0:
        raise ValueError(f"cannot allocate {count} blocks; the count must be 0 or more")
