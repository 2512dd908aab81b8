"""A blob store in the memory of this process."""

from __future__ import annotations

import threading
import time
from collections.abc import Callable, Sequence
from concurrent.futures import Future

from thalweg.cache.store._batches import check_ttl, is_expired, scatter, size_of
from thalweg.interfaces import BlobItem, ConfigError


class MemoryStore:
    """Objects as bytes, at most `max_bytes` of them; satisfies `interfaces.BlobStore`.

    When full, the oldest objects go first. clock: seconds. Raises ConfigError if max_bytes is below 1.
    """

    def __init__(self, max_bytes: int, clock: Callable[[], float] = time.time) -> None:
        if max_bytes < 1:
            raise ConfigError(f"max_bytes is {max_bytes}; at least 1 is needed")
        self._max_bytes, self._clock = max_bytes, clock
        self._objects: dict[bytes, tuple[bytes, float | None]] = {}
        self._num_bytes = 0
        self._closed = False
        self._lock = threading.Lock()

    @property
    def num_bytes(self) -> int:
        """Bytes of all objects."""
        return self._num_bytes

    def put(self, items: Sequence[BlobItem], ttl_s: float | None = None) -> Future[list[bool]]:
        """See `interfaces.BlobStore.put`."""
        check_ttl(ttl_s)
        expires = None if ttl_s is None else self._clock() + ttl_s
        with self._lock:
            return _done([self._keep(key, segments, expires) for key, segments in items])

    def get(self, items: Sequence[BlobItem]) -> Future[list[bool]]:
        """See `interfaces.BlobStore.get`."""
        with self._lock:
            now = self._clock()
            found = [self._objects.get(key) for key, _ in items]
        alive = [entry[0] if entry is not None and not is_expired(entry[1], now) else None for entry in found]
        return _done([data is not None and scatter(data, item[1]) for data, item in zip(alive, items, strict=True)])

    def contains(self, keys: Sequence[bytes]) -> list[bool]:
        """See `interfaces.BlobStore.contains`."""
        with self._lock:
            now = self._clock()
            return [key in self._objects and not is_expired(self._objects[key][1], now) for key in keys]

    def close(self) -> None:
        """Drop everything."""
        with self._lock:
            self._closed = True
            self._objects.clear()
            self._num_bytes = 0

    def _keep(self, key: bytes, segments: Sequence[memoryview], expires: float | None) -> bool:
        if self._closed or size_of(segments) > self._max_bytes:
            return False
        if key in self._objects:  # it lives for the longer of both lifetimes
            ends = (expires, self._objects[key][1])
            expires = None if None in ends else max(end for end in ends if end is not None)
        self._drop(key)
        data = b"".join(segments)
        while self._num_bytes + len(data) > self._max_bytes:
            self._drop(next(iter(self._objects)))
        self._objects[key] = (data, expires)
        self._num_bytes += len(data)
        return True

    def _drop(self, key: bytes) -> None:
        data, _ = self._objects.pop(key, (b"", None))
        self._num_bytes -= len(data)


def _done(answer: list[bool]) -> Future[list[bool]]:
    future: Future[list[bool]] = Future()
    future.set_result(answer)
    return future
