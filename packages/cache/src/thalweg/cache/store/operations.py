"""What an operator does with a store directory: look at it, check every byte, make it smaller."""

from __future__ import annotations

import os
import time
from dataclasses import dataclass
from pathlib import Path

from thalweg.cache.store._batches import is_expired
from thalweg.cache.store._directory import Listing, check_marker, list_files, lock_writer
from thalweg.cache.store._segment_file import SegmentFile, files_to_drop, read_object
from thalweg.interfaces import ConfigError


@dataclass(frozen=True, slots=True)
class StoreSummary:
    """A store directory at one moment."""

    num_files: int
    num_objects: int
    num_bytes: int
    """Bytes of the readable segment files."""
    num_expired_files: int
    unreadable: tuple[tuple[str, str], ...]
    """Segment files that are left alone: name and reason."""
    foreign: tuple[str, ...]
    """Names that no store gives."""
    temporary: tuple[str, ...]
    """Files being written, or left by a writer that was killed."""


@dataclass(frozen=True, slots=True)
class VerifyReport:
    """Every object of a store read once."""

    num_good: int
    damaged: tuple[tuple[str, str], ...]
    """File name and key, in hexadecimal digits."""
    unreadable: tuple[tuple[str, str], ...]


@dataclass(frozen=True, slots=True)
class PruneReport:
    """What was deleted."""

    deleted: tuple[str, ...]
    num_bytes: int
    """Bytes of the deleted segment files."""


def stat(path: Path | str) -> StoreSummary:
    """Count what the directory holds; reads no object. Raises ConfigError if it is no store of this version."""
    listing, now = _listing(Path(path)), time.time()
    return StoreSummary(
        num_files=len(listing.segments),
        num_objects=sum(len(file.extents) for file in listing.segments),
        num_bytes=sum(file.num_bytes for file in listing.segments),
        num_expired_files=sum(is_expired(file.expires, now) for file in listing.segments),
        unreadable=listing.unreadable,
        foreign=listing.foreign,
        temporary=listing.temporary,
    )


def verify(path: Path | str) -> VerifyReport:
    """Read every object and compare its checksum; changes nothing. Raises ConfigError if it is no store."""
    listing = _listing(Path(path))
    unreadable, damaged, num_good = [*listing.unreadable], list[tuple[str, str]](), 0
    for file in listing.segments:
        try:
            bad = _damaged_keys(file)
        except OSError as error:
            unreadable.append((file.path.name, str(error)))
            continue
        damaged += [(file.path.name, key.hex()) for key in bad]
        num_good += len(file.extents) - len(bad)
    return VerifyReport(num_good, tuple(damaged), tuple(unreadable))


def prune(path: Path | str, max_bytes: int | None = None) -> PruneReport:
    """Delete files that expired or that a killed writer left, then the oldest until max_bytes are left.

    Unreadable and foreign files stay. Raises ConfigError if the directory is no store or has a writer now.
    """
    path = Path(path)
    if max_bytes is not None and max_bytes < 0:
        raise ConfigError(f"max_bytes is {max_bytes}; at least 0 is needed")
    check_marker(path, None)
    lock = lock_writer(path)
    try:
        listing, now = list_files(path, None), time.time()
        old = files_to_drop(listing.segments, now, max_bytes)
        deleted = (*listing.temporary, *(file.path.name for file in old))
        for name in deleted:
            (path / name).unlink(missing_ok=True)
        return PruneReport(deleted, sum(file.num_bytes for file in old))
    finally:
        os.close(lock)


def _listing(path: Path) -> Listing:
    check_marker(path, None)
    return list_files(path, None)


def _damaged_keys(file: SegmentFile) -> list[bytes]:
    with file.path.open("rb", buffering=0) as opened:
        return [
            key
            for key, extent in file.extents.items()
            if not read_object(opened.fileno(), extent, [memoryview(bytearray(extent.length))])
        ]
