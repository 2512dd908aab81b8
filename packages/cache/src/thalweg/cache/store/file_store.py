"""A blob store in a directory of packed segment files; one writer, safe after a kill at any point."""

from __future__ import annotations

import logging
import os
import threading
import time
from collections import deque
from collections.abc import Callable, Iterator, Mapping, Sequence
from concurrent.futures import Future, ThreadPoolExecutor
from dataclasses import dataclass
from pathlib import Path

from thalweg.cache.store._batches import check_ttl, is_expired, size_of
from thalweg.cache.store._directory import claim, list_files, segment_names
from thalweg.cache.store._segment_file import Extent, SegmentFile, files_to_drop, read_object, write_segment_file
from thalweg.cache.store.keys import KEY_BYTES
from thalweg.interfaces import BlobItem, ConfigError

_log = logging.getLogger(__name__)
_Place = tuple[SegmentFile, Extent]


@dataclass(slots=True)
class FileStoreCounts:
    """What a file store met since it was opened."""

    num_unreadable_files: int = 0
    num_failed_writes: int = 0
    """Segment files that could not be written, as on a full disk."""
    num_refused: int = 0
    """Objects that found too many bytes waiting to be written."""
    num_damaged: int = 0
    """Objects that were there and could not be read whole."""


@dataclass(frozen=True, slots=True)
class _Batch:
    items: Sequence[BlobItem]
    ttl_s: float | None
    num_bytes: int
    future: Future[list[bool]]


class FileStore:
    """Satisfies `interfaces.BlobStore`.

    fingerprint: what the bytes mean. Batches that wait together share a file, up to `segment_bytes`. Whole files are
    dropped when they expire, and the oldest ones beyond `max_bytes`. A put that would let more than `max_pending_bytes`
    wait is refused as a miss: behind a slow disk no caller's buffers are held for long. clock: seconds since 1970.

    Raises ConfigError for sizes below 1, and for a directory that holds something else, is of another version or
    fingerprint, or is in use.
    """

    def __init__(
        self,
        path: Path | str,
        fingerprint: bytes,
        *,
        max_bytes: int,
        segment_bytes: int = 1 << 28,
        max_pending_bytes: int = 1 << 30,
        clock: Callable[[], float] = time.time,
    ) -> None:
        sizes = {"max_bytes": max_bytes, "segment_bytes": segment_bytes, "max_pending_bytes": max_pending_bytes}
        for name, size in sizes.items():
            if size < 1:
                raise ConfigError(f"{name} is {size}; at least 1 is needed")
        self.path, self.counts = Path(path), FileStoreCounts()
        self._fingerprint, self._clock = fingerprint, clock
        self._max_bytes, self._segment_bytes, self._max_pending_bytes = max_bytes, segment_bytes, max_pending_bytes
        self._writer_lock = claim(self.path, fingerprint)
        self._lock = threading.Lock()
        self._arrived = threading.Condition(self._lock)
        self._waiting: deque[_Batch] = deque()
        self._files: dict[Path, SegmentFile] = {}
        self._where: dict[bytes, SegmentFile] = {}
        self._pending_bytes, self._closed = 0, False
        self._open_what_is_there()
        self._writer = threading.Thread(target=self._write_batches, name="thalweg-store-writer", daemon=True)
        self._writer.start()
        self._reader = ThreadPoolExecutor(1, "thalweg-store-reader")

    def put(self, items: Sequence[BlobItem], ttl_s: float | None = None) -> Future[list[bool]]:
        """See `interfaces.BlobStore.put`. Raises ConfigError for a key that has not 32 bytes."""
        check_ttl(ttl_s)
        for key, _ in items:
            if len(key) != KEY_BYTES:
                raise ConfigError(f"a key has {len(key)} bytes; keys have {KEY_BYTES}")
        future: Future[list[bool]] = Future()
        num_bytes = sum(size_of(segments) for _, segments in items)
        with self._lock:
            if self._closed or self._pending_bytes + num_bytes > self._max_pending_bytes:
                self.counts.num_refused += len(items)
                future.set_result([False] * len(items))
                return future
            self._pending_bytes += num_bytes
            self._waiting.append(_Batch(items, ttl_s, num_bytes, future))
            self._arrived.notify()
        return future

    def get(self, items: Sequence[BlobItem]) -> Future[list[bool]]:
        """See `interfaces.BlobStore.get`."""
        with self._lock:
            if not self._closed:
                return self._reader.submit(self._read, items)
        future: Future[list[bool]] = Future()
        future.set_result([False] * len(items))
        return future

    def contains(self, keys: Sequence[bytes]) -> list[bool]:
        """See `interfaces.BlobStore.contains`."""
        now = self._clock()
        with self._lock:
            return [self._find(key, now) is not None for key in keys]

    def close(self) -> None:
        """Write what waits, then let go of the directory."""
        with self._lock:
            if self._closed:
                return
            self._closed = True
            self._arrived.notify()
        self._writer.join()
        self._reader.shutdown()
        os.close(self._writer_lock)

    def _open_what_is_there(self) -> None:
        listing = list_files(self.path, self._fingerprint)
        for _, reason in listing.unreadable:
            _log.warning("store %s: %s; the file is left alone", self.path, reason)
            self.counts.num_unreadable_files += 1
        for name in listing.temporary:  # of a writer that was killed: this process is the only one now
            (self.path / name).unlink(missing_ok=True)
        for file in listing.segments:
            self._add(file)
        self._next_number = listing.next_number
        self._drop_old()

    def _find(self, key: bytes, now: float) -> _Place | None:
        file = self._where.get(key)
        return None if file is None or is_expired(file.expires, now) else (file, file.extents[key])

    def _read(self, items: Sequence[BlobItem]) -> list[bool]:
        now, answer = self._clock(), [False] * len(items)
        with self._lock:
            found = [self._find(key, now) for key, _ in items]
        by_file: dict[Path, list[tuple[int, Extent]]] = {}
        for number, place in enumerate(found):
            if place is not None:
                by_file.setdefault(place[0].path, []).append((number, place[1]))
        for path, wanted in by_file.items():
            try:
                with path.open("rb", buffering=0) as file:
                    for number, extent in sorted(wanted, key=lambda pair: pair[1].offset):
                        answer[number] = read_object(file.fileno(), extent, items[number][1])
            except Exception as error:  # a file deleted by hand, a disk that fails, a buffer that was released
                _log.warning("store %s: %s", self.path, error)
        self._forget_damaged(items, found, answer)
        return answer

    def _forget_damaged(self, items: Sequence[BlobItem], found: Sequence[_Place | None], answer: list[bool]) -> None:
        """What was there, of the size that was asked for, and could not be read is not offered again."""
        with self._lock:
            for (key, segments), place, ok in zip(items, found, answer, strict=True):
                if place is None or ok or size_of(segments) != place[1].length:
                    continue
                if self._where.get(key) is place[0]:
                    del self._where[key]
                    self.counts.num_damaged += 1

    def _write_batches(self) -> None:
        """The writer thread."""
        while batches := self._take():
            self._write(batches)

    def _take(self) -> list[_Batch]:
        """Wait for batches: those of one lifetime that wait one after another, up to a file's size; none is the end."""
        with self._arrived:
            self._arrived.wait_for(lambda: self._waiting or self._closed)
            taken: list[_Batch] = []
            num_bytes = 0
            while self._waiting and num_bytes < self._segment_bytes:
                if taken and self._waiting[0].ttl_s != taken[0].ttl_s:
                    break
                taken.append(self._waiting.popleft())
                num_bytes += taken[-1].num_bytes
            return taken

    def _write(self, batches: list[_Batch]) -> None:
        ttl_s, now = batches[0].ttl_s, self._clock()
        expires = None if ttl_s is None else now + ttl_s
        wanted = {key: segments for batch in batches for key, segments in batch.items if not self._lasts(key, expires)}
        durable = {key for batch in batches for key, _ in batch.items} - wanted.keys()
        for part in self._parts(wanted):
            durable |= self._write_file(part, expires)
        with self._lock:
            self._pending_bytes -= sum(batch.num_bytes for batch in batches)
        for batch in batches:
            batch.future.set_result([key in durable for key, _ in batch.items])

    def _parts(self, wanted: Mapping[bytes, Sequence[memoryview]]) -> Iterator[list[BlobItem]]:
        """The objects of each file: it is full with the object that reaches its size."""
        part: list[BlobItem] = []
        num_bytes = 0
        for key, segments in wanted.items():
            part.append((key, segments))
            num_bytes += size_of(segments)
            if num_bytes >= self._segment_bytes:
                yield part
                part, num_bytes = [], 0
        if part:
            yield part

    def _lasts(self, key: bytes, expires: float | None) -> bool:
        """Whether the object is there for as long as is asked."""
        with self._lock:
            place = self._find(key, self._clock())
        return place is not None and (place[0].expires or float("inf")) >= (expires or float("inf"))

    def _write_file(self, items: list[BlobItem], expires: float | None) -> set[bytes]:
        """Write one segment file; the keys that are durable, none of them if it failed."""
        temporary, path = segment_names(self.path, self._next_number)
        self._next_number += 1
        try:
            file = write_segment_file(temporary, path, self._fingerprint, items, expires)
        except Exception as error:  # a full disk, a directory taken away, a buffer that was released: all are misses
            _log.warning("store %s: %d objects were not stored: %s", self.path, len(items), error)
            self.counts.num_failed_writes += 1
            return set()
        with self._lock:
            self._add(file)
        self._drop_old()
        with self._lock:  # a file larger than all that may be kept went at once
            return {key for key in file.extents if self._where.get(key) is file}

    def _add(self, file: SegmentFile) -> None:
        self._files[file.path] = file
        self._where.update(dict.fromkeys(file.extents, file))

    def _drop_old(self) -> None:
        """Delete files that expired, then the oldest until the rest fits."""
        now = self._clock()
        with self._lock:
            for file in files_to_drop([*self._files.values()], now, self._max_bytes):
                self._drop(file)

    def _drop(self, file: SegmentFile) -> None:
        del self._files[file.path]
        for key in file.extents:
            if self._where.get(key) is file:
                del self._where[key]
        try:
            file.path.unlink(missing_ok=True)
        except OSError as error:
            _log.warning("store %s: %s", self.path, error)
