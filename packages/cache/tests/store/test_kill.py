"""A writer and a reader that are killed: what was said to be durable is there, and nothing else is broken."""

from __future__ import annotations

import random
import signal
import subprocess
import sys
import time
from pathlib import Path

import thalweg.cache
from thalweg.cache.store import FileStore, stat, verify

WRITER = """
import hashlib, importlib.util, random, sys, types
{prepare}
store = FileStore(sys.argv[1], b"model", max_bytes=1 << 30, segment_bytes=60_000)
for number in range(int(sys.argv[2]), 10**6):
    data = random.Random(number).randbytes(20_000)
    futures = [store.put([(number.to_bytes(32, "little"), [memoryview(data)])])]
    store.get([((number - 1).to_bytes(32, "little"), [memoryview(bytearray(20_000))])])
    if futures[0].result() == [True]:
        print(number, flush=True)
"""
# The package above imports torch, which takes far longer than what is tested: only its folder is made known.
PREPARE = """
package = types.ModuleType("thalweg.cache")
package.__path__ = [{folder!r}]
sys.modules["thalweg.cache"] = package
from thalweg.cache.store import FileStore
"""


def test_a_kill_at_any_moment_loses_nothing_durable(tmp_path: Path) -> None:
    program = WRITER.format(prepare=PREPARE.format(folder=str(Path(thalweg.cache.__file__).parent)))
    draw, durable = random.Random(1), list[int]()
    for _ in range(6):
        command = [sys.executable, "-c", program, str(tmp_path / "store"), str(len(durable) + 1000)]
        with subprocess.Popen(command, stdout=subprocess.PIPE, text=True) as writer:
            assert writer.stdout is not None
            first = writer.stdout.readline()
            time.sleep(draw.random() * 0.1)
            writer.send_signal(signal.SIGKILL)
            lines = [line for line in [first, *writer.stdout] if line.endswith("\n")]
        assert lines, "the writer must have begun"
        durable += [number for number in map(int, lines) if number not in durable]
        report = verify(tmp_path / "store")
        assert (report.damaged, report.unreadable) == ((), ())
    store = FileStore(tmp_path / "store", b"model", max_bytes=1 << 30)
    try:
        assert stat(store.path).temporary == ()
        rooms = [bytearray(20_000) for _ in durable]
        items = [
            (number.to_bytes(32, "little"), [memoryview(room)]) for number, room in zip(durable, rooms, strict=True)
        ]
        assert all(store.get(items).result(20))
        assert rooms == [random.Random(number).randbytes(20_000) for number in durable]
    finally:
        store.close()
