"""The contract of a device backend, and its lookup by name.

Backends register under the entry-point group `thalweg.backends`; nothing is imported before one is asked for.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from contextlib import AbstractContextManager
from dataclasses import dataclass
from typing import Any, Protocol, TypeVar

from thalweg.interfaces.errors import BackendUnavailableError

ENTRY_POINT_GROUP = "thalweg.backends"
BACKEND_NAMES = ("cpu", "sm90", "sm100", "ascend")


class Event(Protocol):
    """A point in a stream."""

    def done(self) -> bool:
        """Whether everything before the event has finished."""

    def wait(self) -> None:
        """Block the calling thread until it has."""


class Timing(Protocol):
    """When a piece of device work ran."""

    @property
    def span_ns(self) -> tuple[int, int]:
        """Its begin and its end on the clock of `time.perf_counter_ns`.

        Known once an event behind the work has passed; raises InvariantError before that, and for work that failed.
        """


T_co = TypeVar("T_co", covariant=True)
T = TypeVar("T")


class Launched(Protocol[T_co]):
    """What launched work returns: tensors whose contents exist once the work has run."""

    @property
    def value(self) -> T_co:
        """The result, for work launched later on the same stream, or for the host once a later event has passed.

        Where host and device are one (CPU), raises InvariantError when the host reads it too early.
        """

    @property
    def timing(self) -> Timing:
        """When the work ran. Does not keep its result alive."""


class Stream(Protocol):
    """An ordered queue of device work."""

    def launch(self, work: Callable[[], T]) -> Launched[T]:
        """Queue work. Device backends call it at once, as their kernels queue themselves; the CPU runs it later.

        What the work raises comes out of the next wait on an event behind it, and of every wait after that.
        """

    def synchronize(self) -> None:
        """Block until the queue is empty. Not allowed inside `Backend.no_host_sync`."""

    def record(self) -> Event:
        """Mark the current end of the queue."""

    def wait(self, event: Event) -> None:
        """Hold later work of this stream until the event has passed."""


class Graph(Protocol):
    """A captured sequence of device work."""

    def replay(self) -> None:
        """Run it again on the current contents of its buffers."""


@dataclass(frozen=True, slots=True)
class DeviceMemory:
    """The memory of a device, in bytes."""

    total_bytes: int
    free_bytes: int
    """Taken by nobody, this process or another one."""
    used_bytes: int
    """What tensors of this process have, and what is kept for its next ones."""
    peak_bytes: int
    """The most of that since memory was last released."""


class Backend(Protocol):
    """One kind of device: where tensors live and how work is ordered. Tensors are torch tensors."""

    @property
    def name(self) -> str: ...

    @property
    def device(self) -> Any: ...

    @property
    def device_name(self) -> str:
        """What the device is called: figures that were measured on one hold for those of its name."""

    @property
    def registry(self) -> Any:
        """The kernel registry that serves this backend's ops."""

    def empty(self, shape: Sequence[int], dtype: Any, *, pinned: bool = False) -> Any:
        """An uninitialised tensor on the device, or in pinned host memory."""

    def stream(self) -> Stream: ...

    def copy_to_host(self, tensor: Any) -> tuple[Any, Event]:
        """A host copy that is valid once the event has passed."""

    def read(self, tensor: Any) -> Any:
        """A host copy, now: blocks until the tensor is computed. Not allowed inside `no_host_sync`."""

    def no_host_sync(self) -> AbstractContextManager[None]:
        """Forbid host synchronisation inside the context; waiting for an event stays allowed."""

    @property
    def guard(self) -> Any:
        """The switch behind `no_host_sync`: with `guard.enabled = False` it forbids nothing."""

    def allow_host_sync(self) -> AbstractContextManager[None]:
        """Lift the ban inside the context, for what must block (an expert rearrangement)."""

    def close(self) -> None:
        """Finish queued work and stop the backend's threads; harmless when called twice."""

    @property
    def has_graphs(self) -> bool:
        """Whether `capture` makes graphs."""

    def capture(self, fn: Callable[[], None]) -> Graph | None:
        """Capture `fn` as a graph; None where graphs do not exist.

        `fn` runs once before it is captured, so that nothing is loaded or compiled inside. All graphs share the memory
        of what is computed inside: they are replayed one after the other, and a result must be written to a tensor from
        outside, or be read before the next replay.
        """

    @property
    def architecture(self) -> str | None:
        """What kernels are built for, as implementations in the registry name it; None where that makes no odds."""

    @property
    def num_compiled(self) -> int:
        """Kernels that this process has built, or loaded, so far; a running engine should add none."""

    def memory(self) -> DeviceMemory | None:
        """The device's memory as it is now; None where it is the host's."""

    def release_memory(self) -> None:
        """Give back what no tensor uses any more, once the queued work has finished; a new peak begins."""


def load_backend(name: str) -> Backend:
    """Instantiate the backend registered under this name.

    Raises BackendUnavailableError when no installed distribution provides it.
    """
    import importlib.metadata  # half of this package's import time, and only this function needs it

    entry_points = importlib.metadata.entry_points(group=ENTRY_POINT_GROUP)
    for entry_point in entry_points:
        if entry_point.name == name:
            backend: Backend = entry_point.load()()
            return backend
    installed = ", ".join(sorted({entry_point.name for entry_point in entry_points})) or "none"
    raise BackendUnavailableError(f"no backend {name!r} is installed; installed: {installed}")
