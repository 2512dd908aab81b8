"""The directory of a file store: who may write in it, what it is of, and which of its files are whose."""

from __future__ import annotations

import fcntl
import json
import os
import re
from dataclasses import dataclass
from pathlib import Path

from thalweg.cache.store._segment_file import (
    FORMAT_VERSION,
    SegmentFile,
    UnreadableSegmentError,
    read_segment_file,
    sync_directory,
)
from thalweg.interfaces import ConfigError, shown

_MARKER, _LOCK, _TEMPORARY = "store.json", "lock", ".tmp"
_SEGMENT = re.compile(r"segment-(\d{12})\.blobs")


@dataclass(frozen=True, slots=True)
class Listing:
    """The files of a store directory, oldest segment first."""

    segments: tuple[SegmentFile, ...]
    unreadable: tuple[tuple[str, str], ...]
    """Segment files that are damaged or of another store: name and reason."""
    foreign: tuple[str, ...]
    """Names that no store gives."""
    temporary: tuple[str, ...]
    """What a writer that was killed left behind, or one at work is writing."""
    next_number: int


def claim(path: Path, fingerprint: bytes) -> int:
    """Make or open the store directory for one writer; a descriptor that holds it until closed, also by a kill.

    Raises ConfigError if the directory holds something else, is of another version or model, or has a writer.
    """
    try:
        path.mkdir(parents=True, exist_ok=True)
        lock = lock_writer(path)
    except OSError as error:
        raise ConfigError(f"store directory {path} cannot be used: {error}") from None
    try:
        if (path / _MARKER).exists():
            check_marker(path, fingerprint)
        else:
            _write_marker(path, fingerprint)
    except BaseException:
        os.close(lock)
        raise
    return lock


def lock_writer(path: Path) -> int:
    """Become the directory's only writer. Raises ConfigError if there is one."""
    lock = os.open(path / _LOCK, os.O_RDWR | os.O_CREAT, 0o644)
    try:
        fcntl.flock(lock, fcntl.LOCK_EX | fcntl.LOCK_NB)
    except BlockingIOError:
        os.close(lock)
        raise ConfigError(f"store directory {path} is in use by another process; each needs its own") from None
    return lock


def check_marker(path: Path, fingerprint: bytes | None) -> None:
    """Raise ConfigError unless this is a store of this version, and of this fingerprint if one is given."""
    try:
        marker = json.loads((path / _MARKER).read_text())
        version, held = marker["format"], marker["fingerprint"]
    except (OSError, ValueError, KeyError, TypeError):
        raise ConfigError(f"{path} is no store directory: {_MARKER} is missing or cannot be read") from None
    if version != FORMAT_VERSION:
        raise ConfigError(f"store directory {path} has format {shown(version)}; this version reads {FORMAT_VERSION}")
    if fingerprint is not None and held != fingerprint.hex():
        raise ConfigError(
            f"store directory {path} is of another model or cache format: its fingerprint is {shown(held)}, "
            f"this engine's {fingerprint.hex()!r}; give another directory"
        )


def list_files(path: Path, fingerprint: bytes | None) -> Listing:
    """What lies in the directory; reads header and table of each segment file and changes nothing."""
    segments, unreadable, foreign, temporary, last = [], [], [], [], 0
    for name in sorted(os.listdir(path)):
        match = _SEGMENT.fullmatch(name)
        if match:
            last = int(match[1])
            try:
                segments.append(read_segment_file(path / name, fingerprint))
            except (OSError, UnreadableSegmentError) as error:
                unreadable.append((name, str(error)))
        elif _is_temporary(name):
            temporary.append(name)
        elif name not in (_MARKER, _LOCK):
            foreign.append(name)
    return Listing(tuple(segments), tuple(unreadable), tuple(foreign), tuple(temporary), last + 1)


def segment_names(path: Path, number: int) -> tuple[Path, Path]:
    """The temporary and the final name of a segment file."""
    name = f"segment-{number:012d}.blobs"
    return path / (name + _TEMPORARY), path / name


def _is_temporary(name: str) -> bool:
    inner = name.removesuffix(_TEMPORARY)
    return inner != name and (inner == _MARKER or _SEGMENT.fullmatch(inner) is not None)


def _write_marker(path: Path, fingerprint: bytes) -> None:
    """Turn an empty directory into a store."""
    strange = sorted(name for name in os.listdir(path) if name != _LOCK and not _is_temporary(name))
    if strange:
        (path / _LOCK).unlink()
        raise ConfigError(f"{path} is no store directory and not empty (it holds {shown(strange[0])})")
    temporary = path / (_MARKER + _TEMPORARY)
    with temporary.open("w") as file:
        json.dump({"format": FORMAT_VERSION, "fingerprint": fingerprint.hex()}, file)
        file.flush()
        os.fsync(file.fileno())
    temporary.rename(path / _MARKER)
    sync_directory(path)
