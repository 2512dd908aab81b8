"""The newest values up to a number of bytes, and the newest keys up to a number."""

from __future__ import annotations

import threading
from collections import OrderedDict
from collections.abc import Hashable
from typing import Generic, TypeVar

K = TypeVar("K", bound=Hashable)
V = TypeVar("V")


class ByteCache(Generic[K, V]):
    """Least recently used entries leave first. Not safe for several threads by itself."""

    def __init__(self, limit_bytes: int) -> None:
        self._limit_bytes = limit_bytes
        self._entries: OrderedDict[K, tuple[V, int]] = OrderedDict()
        self._total_bytes = 0

    @property
    def total_bytes(self) -> int:
        """Of everything kept; never above the limit."""
        return self._total_bytes

    def __len__(self) -> int:
        return len(self._entries)

    def get(self, key: K) -> V | None:
        """The value, which is the newest now, or None."""
        entry = self._entries.get(key)
        if entry is None:
            return None
        self._entries.move_to_end(key)
        return entry[0]

    def put(self, key: K, value: V, num_bytes: int) -> list[V]:
        """Keep a value, unless it alone exceeds the limit.

        Returns what left for it: the caller decides where it is destroyed, which may take a while.
        """
        gone = self._remove(key)
        if num_bytes > self._limit_bytes:
            return gone
        self._entries[key] = (value, num_bytes)
        self._total_bytes += num_bytes
        while self._total_bytes > self._limit_bytes:
            gone += self._remove(next(iter(self._entries)))
        return gone

    def clear(self) -> list[V]:
        """Forget everything; returns it, like `put`."""
        gone = [value for value, _ in self._entries.values()]
        self._entries.clear()
        self._total_bytes = 0
        return gone

    def _remove(self, key: K) -> list[V]:
        entry = self._entries.pop(key, None)
        if entry is None:
            return []
        self._total_bytes -= entry[1]
        return [entry[0]]


class RecentKeys:
    """Remembers the newest of what it was shown; for several threads."""

    def __init__(self, most: int) -> None:
        self._most = most
        self._lock = threading.Lock()
        self._keys: OrderedDict[Hashable, None] = OrderedDict()

    def add(self, key: Hashable) -> bool:
        """True if the key is new."""
        with self._lock:
            is_new = key not in self._keys
            self._keys[key] = None
            self._keys.move_to_end(key)
            if len(self._keys) > self._most:
                self._keys.popitem(last=False)
            return is_new
