"""What a test sees of processes, threads and descriptors, from /proc."""

from __future__ import annotations

import os
import time
from collections.abc import Callable
from pathlib import Path


def wait_until(condition: Callable[[], object], timeout_s: float = 30.0) -> None:
    """Return when the condition holds; fail if it does not in time."""
    end = time.monotonic() + timeout_s
    while not condition():
        assert time.monotonic() < end, "the condition did not come true in time"
        time.sleep(0.005)


def children_of(pid: int) -> list[int]:
    """Process ids of its children, zombies included."""
    lists = Path(f"/proc/{pid}/task").glob("*/children")
    try:
        return sorted(int(child) for path in lists for child in path.read_text().split())
    except FileNotFoundError:
        return []


def family_of(pid: int) -> list[int]:
    """The process ids of all its descendants."""
    children = children_of(pid)
    return [*children, *(grandchild for child in children for grandchild in family_of(child))]


def is_alive(pid: int) -> bool:
    """Whether the process runs, and is no zombie that nobody has reaped yet."""
    try:
        return Path(f"/proc/{pid}/stat").read_text().rpartition(")")[2].split()[0] not in "ZX"
    except (FileNotFoundError, ProcessLookupError):
        return False


def open_fds() -> set[str]:
    """What the descriptors of this process refer to, by number."""
    found = set()
    for fd in os.listdir("/proc/self/fd"):
        try:
            found.add(f"{fd} {os.readlink(f'/proc/self/fd/{fd}')}")
        except FileNotFoundError:  # the one that listed the folder
            continue
    return found


def resident_bytes(pid: int) -> int:
    """Memory of a process that is in use now."""
    return int(Path(f"/proc/{pid}/statm").read_text().split()[1]) * os.sysconf("SC_PAGESIZE")
