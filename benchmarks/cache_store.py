"""What the file store costs: putting and getting blocks, against a plain sequential copy of one file of the same bytes.

"put" is the time until all objects are durable, "get" until all buffers are filled and their checksums compared. The
copy reads a file and writes it again in pieces of 1 MiB, until it is durable; "read" is its first half alone. Best of
several rounds, wall time; files that were just written are read from the page cache by all. Objects have the size of a
block of the released model.
"""

from __future__ import annotations

import hashlib
import os
import tempfile
import time
from collections.abc import Callable
from pathlib import Path

from report import Row, arguments, publish

from thalweg.cache.store import FileStore
from thalweg.interfaces import BlobItem

OBJECT_BYTES = 113_920
NUM_SEGMENTS = 4
"""Layers that have bytes in a block."""
PIECE = 1 << 20


def make_items(count: int, round_: int) -> list[BlobItem]:
    """Objects of equal content under keys of their own, each in several buffers."""
    data, size = bytearray(os.urandom(OBJECT_BYTES)), OBJECT_BYTES // NUM_SEGMENTS
    segments = [memoryview(data)[begin : begin + size] for begin in range(0, OBJECT_BYTES, size)]
    return [(hashlib.sha256(f"{round_} {number}".encode()).digest(), segments) for number in range(count)]


def copy_file(source: Path, target: Path) -> None:
    with source.open("rb", buffering=0) as reader, target.open("wb", buffering=0) as writer:
        while piece := reader.read(PIECE):
            writer.write(piece)
        os.fsync(writer.fileno())


def read_file(source: Path) -> None:
    room = bytearray(PIECE)
    with source.open("rb", buffering=0) as reader:
        while reader.readinto(room):
            pass


def timed(work: Callable[[], object]) -> float:
    begin = time.perf_counter()
    work()
    return time.perf_counter() - begin


def all_found(answer: list[bool]) -> None:
    if not all(answer):
        raise RuntimeError("the store missed an object: its time means nothing")


def measure(count: int, rounds: int, folder: Path) -> list[Row]:
    """One row for each of copy, read, put and get."""
    source, num_bytes = folder / "source", count * OBJECT_BYTES
    source.write_bytes(os.urandom(num_bytes))
    store = FileStore(folder / "store", b"benchmark", max_bytes=4 * num_bytes, max_pending_bytes=num_bytes)
    seconds: dict[str, list[float]] = {"copy": [], "read": [], "put": [], "get": []}
    for round_ in range(rounds):
        items = make_items(count, round_)
        seconds["copy"].append(timed(lambda: copy_file(source, folder / "target")))
        seconds["read"].append(timed(lambda: read_file(source)))
        seconds["put"].append(timed(lambda items=items: all_found(store.put(items).result())))  # type: ignore[misc]
        seconds["get"].append(timed(lambda items=items: all_found(store.get(items).result())))  # type: ignore[misc]
    store.close()
    fastest = {name: min(times) for name, times in seconds.items()}
    return [
        {"what": name, "MB": num_bytes / 1e6, "seconds": taken, "MB/s": num_bytes / 1e6 / taken,
         "of the copy's speed": fastest["copy"] / taken}
        for name, taken in fastest.items()
    ]  # fmt: skip


if __name__ == "__main__":
    options = arguments(__doc__.splitlines()[0]).parse_args()
    with tempfile.TemporaryDirectory() as name:
        publish(measure(8 if options.smoke else 2000, 1 if options.smoke else 5, Path(name)), options.json)
