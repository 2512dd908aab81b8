"""The file format of packed objects: header, objects, table, trailer. A file is written once and never changed.

Little endian. The trailer comes last and checks header and table; each object has a checksum of its own in the table.
So a file whose end is missing is recognised without reading it, and damage to one object costs that object alone.
"""

from __future__ import annotations

import hashlib
import os
import struct
import zlib
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path

from thalweg.cache.store._batches import as_bytes, is_expired, size_of
from thalweg.cache.store.keys import KEY_BYTES
from thalweg.interfaces import BlobItem

FORMAT_VERSION = 1
_MAGIC, _END = b"TWBLOBS1", b"TWBLOBSE"
_HEADER = struct.Struct("<8sId32s")
_ROW = struct.Struct(f"<{KEY_BYTES}sQQI")
_TRAILER = struct.Struct("<QQI8s")
_MOST_BUFFERS = 1024
"""Buffers of one system call (IOV_MAX)."""
_NEVER = float("inf")


class UnreadableSegmentError(Exception):
    """A file is not a whole segment file of this store; the message says what is wrong with it."""


@dataclass(frozen=True, slots=True)
class Extent:
    """Where an object lies in its file."""

    offset: int
    length: int
    checksum: int


@dataclass(frozen=True, slots=True)
class SegmentFile:
    """What header and table of a file say."""

    path: Path
    num_bytes: int
    expires: float | None
    """Seconds since 1970, None without end."""
    extents: dict[bytes, Extent]


def write_segment_file(
    temporary: Path, path: Path, fingerprint: bytes, items: Sequence[BlobItem], expires: float | None
) -> SegmentFile:
    """Write the objects, make them durable, then give the file its name. Raises OSError, and leaves no file then."""
    try:
        with temporary.open("wb", buffering=0) as file:
            result = _write(file.fileno(), path, fingerprint, items, expires)
            os.fsync(file.fileno())
        temporary.rename(path)
        sync_directory(path.parent)
    except BaseException:
        temporary.unlink(missing_ok=True)
        raise
    return result


def _write(file: int, path: Path, fingerprint: bytes, items: Sequence[BlobItem], expires: float | None) -> SegmentFile:
    header = _HEADER.pack(_MAGIC, FORMAT_VERSION, _NEVER if expires is None else expires, _digest(fingerprint))
    extents: dict[bytes, Extent] = {}
    _write_all(file, [memoryview(header)])
    end = _HEADER.size
    for key, segments in items:
        buffers = as_bytes(segments)
        _write_all(file, buffers)
        extents[key] = Extent(end, size_of(segments), checksum_of(buffers))
        end += extents[key].length
    table = b"".join(_ROW.pack(key, e.offset, e.length, e.checksum) for key, e in extents.items())
    trailer = _TRAILER.pack(end, len(extents), zlib.crc32(table, zlib.crc32(header)), _END)
    _write_all(file, [memoryview(table + trailer)])
    return SegmentFile(path, end + len(table) + len(trailer), expires, extents)


def read_segment_file(path: Path, fingerprint: bytes | None) -> SegmentFile:
    """Header and table of a file. fingerprint: what the store's bytes mean, None to accept any.

    Raises UnreadableSegmentError for a file that is damaged, cut off or of another store, OSError if it cannot be read.
    """
    with path.open("rb") as file:
        size = file.seek(0, os.SEEK_END)
        if size < _HEADER.size + _TRAILER.size:
            raise UnreadableSegmentError(f"{path.name} has {size} bytes, too few for a segment file")
        file.seek(0)
        header = file.read(_HEADER.size)
        magic, version, expires, digest = _HEADER.unpack(header)
        file.seek(size - _TRAILER.size)
        table_offset, count, checksum, end = _TRAILER.unpack(file.read(_TRAILER.size))
        if magic != _MAGIC or end != _END or table_offset + count * _ROW.size + _TRAILER.size != size:
            raise UnreadableSegmentError(f"{path.name} is no segment file, or its end is missing")
        file.seek(table_offset)
        table = file.read(count * _ROW.size)
    if zlib.crc32(table, zlib.crc32(header)) != checksum:
        raise UnreadableSegmentError(f"{path.name}: the table is damaged")
    if version != FORMAT_VERSION:
        raise UnreadableSegmentError(f"{path.name} has format {version}; this version reads {FORMAT_VERSION}")
    if fingerprint is not None and digest != _digest(fingerprint):
        raise UnreadableSegmentError(f"{path.name} is of another model or cache format")
    extents = {key: Extent(*where) for key, *where in _ROW.iter_unpack(table)}
    return SegmentFile(path, size, None if expires == _NEVER else expires, extents)


def read_object(file: int, extent: Extent, segments: Sequence[memoryview]) -> bool:
    """Fill the segments with an object; False if it is damaged or of another size. Raises OSError."""
    if size_of(segments) != extent.length:
        return False
    waiting, offset = as_bytes(segments), extent.offset
    while waiting:
        count = os.preadv(file, waiting[:_MOST_BUFFERS], offset)
        if count == 0:
            return False  # the file ends before the object does
        offset += count
        waiting = _after(waiting, count)
    return checksum_of(as_bytes(segments)) == extent.checksum


def files_to_drop(files: Sequence[SegmentFile], now: float, max_bytes: int | None) -> list[SegmentFile]:
    """Of files from old to new: those that expired, then the oldest until the rest fits; None is without limit."""
    dropped = [file for file in files if is_expired(file.expires, now)]
    alive = [file for file in files if not is_expired(file.expires, now)]
    total = sum(file.num_bytes for file in alive)
    for file in alive:
        if max_bytes is None or total <= max_bytes:
            break
        total -= file.num_bytes
        dropped.append(file)
    return dropped


def checksum_of(buffers: Sequence[memoryview]) -> int:
    """CRC-32 of the buffers one after another."""
    checksum = 0
    for buffer in buffers:
        checksum = zlib.crc32(buffer, checksum)
    return checksum


def sync_directory(path: Path) -> None:
    """Make names given or taken in a directory durable."""
    descriptor = os.open(path, os.O_RDONLY)
    try:
        os.fsync(descriptor)
    finally:
        os.close(descriptor)


def _write_all(file: int, buffers: list[memoryview]) -> None:
    while buffers:
        buffers = _after(buffers, os.writev(file, buffers[:_MOST_BUFFERS]))


def _after(buffers: list[memoryview], count: int) -> list[memoryview]:
    """What is left of the buffers behind their first `count` bytes."""
    done = 0
    while done < len(buffers) and count >= buffers[done].nbytes:
        count -= buffers[done].nbytes
        done += 1
    rest = buffers[done:]
    if count:
        rest[0] = rest[0][count:]
    return rest


def _digest(fingerprint: bytes) -> bytes:
    return hashlib.sha256(fingerprint).digest()
