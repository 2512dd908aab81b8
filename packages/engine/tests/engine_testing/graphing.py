"""A backend on the CPU that acts like a device: it has graphs, and memory of its own."""

from __future__ import annotations

from collections.abc import Callable

from thalweg.interfaces import DeviceMemory
from thalweg.kernels.backends.cpu import CpuBackend


class ReplayedGraph:
    """Runs the captured function again."""

    def __init__(self, fn: Callable[[], None]) -> None:
        self._fn = fn
        self.num_replays = 0

    def replay(self) -> None:
        self.num_replays += 1
        self._fn()


class GraphingBackend(CpuBackend):
    """Captures by calling twice, as a device does: once to warm up, once to record."""

    def __init__(self) -> None:
        super().__init__()
        self.graphs: list[ReplayedGraph] = []
        self.device_memory: DeviceMemory | None = None
        self.num_released = 0

    @property
    def has_graphs(self) -> bool:
        return True

    def capture(self, fn: Callable[[], None]) -> ReplayedGraph:  # type: ignore[override]
        fn()
        fn()
        self.graphs.append(ReplayedGraph(fn))
        return self.graphs[-1]

    def memory(self) -> DeviceMemory | None:  # type: ignore[override]
        return self.device_memory

    def release_memory(self) -> None:
        self.num_released += 1
