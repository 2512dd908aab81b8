"""The backend that runs everywhere: torch on the CPU, one worker thread as its stream, ops from the reference."""

from __future__ import annotations

import contextlib
import itertools
import platform
from collections.abc import Callable, Sequence
from typing import TYPE_CHECKING

import torch

from thalweg.kernels.backends.host_sync import HostSync
from thalweg.kernels.backends.stream import FifoStream, QueueEvent
from thalweg.kernels.catalog import default_registry
from thalweg.kernels.registry import Registry
from thalweg.kernels.sync_guard import SyncGuard

if TYPE_CHECKING:
    from thalweg.interfaces import Backend

_numbers = itertools.count()


class CpuBackend:
    """thalweg.interfaces.Backend for the CPU.

    Launched work runs later, on one thread, in order; nothing else about it differs from calling it. A backend belongs
    to the process that first launched on it. `guard.enabled = False` switches the ban on host synchronisation off.
    """

    def __init__(self) -> None:
        self._host_sync = HostSync()
        self._stream = FifoStream(f"cpu-stream-{next(_numbers)}", self._host_sync)

    @property
    def name(self) -> str:
        return "cpu"

    @property
    def guard(self) -> SyncGuard:
        """The guard behind `no_host_sync` and `allow_host_sync`."""
        return self._host_sync.guard

    @property
    def device(self) -> torch.device:
        return torch.device("cpu")

    @property
    def device_name(self) -> str:
        """The processor's name as Linux tells it, or what Python knows."""
        try:
            with open("/proc/cpuinfo", encoding="utf-8", errors="replace") as file:
                names = (line.partition(":")[2].strip() for line in file if line.startswith("model name"))
                return next(names, "") or platform.machine()
        except OSError:
            return platform.processor() or platform.machine()

    @property
    def registry(self) -> Registry:
        return default_registry()

    def empty(self, shape: Sequence[int], dtype: torch.dtype, *, pinned: bool = False) -> torch.Tensor:
        """An uninitialised tensor; all host memory is alike here, so `pinned` changes nothing."""
        del pinned
        return torch.empty(tuple(shape), dtype=dtype, device=self.device)

    def stream(self) -> FifoStream:
        """The backend's one stream."""
        return self._stream

    def copy_to_host(self, tensor: torch.Tensor) -> tuple[torch.Tensor, QueueEvent]:
        """A copy of what the work launched so far leaves in `tensor`, and the event after which it is valid.

        By launched work: of the tensor as it is now. Until the event passes, the copy holds nonsense on purpose.
        """
        source = tensor.detach()
        if self._stream.current is not None:
            return source.clone(), self._stream.record()
        copy = torch.empty(source.shape, dtype=source.dtype)
        if copy.dtype != torch.bool:
            copy.reshape(-1).view(torch.uint8).fill_(0x7F)  # large numbers and float8 NaN, so that early reads show
        self._stream.launch(lambda: copy.copy_(source))
        return copy, self._stream.record()

    def read(self, tensor: torch.Tensor) -> torch.Tensor:
        """A copy of what the work launched so far leaves in `tensor`; blocks. Raises HostSyncError where forbidden."""
        self._host_sync.check(self._stream.current)
        self._stream.record().wait()
        return tensor.detach().clone()

    def no_host_sync(self) -> contextlib.AbstractContextManager[None]:
        """`read` and `synchronize` raise HostSyncError inside, and in work launched inside. Also a decorator."""
        return self.guard.forbid()

    def allow_host_sync(self) -> contextlib.AbstractContextManager[None]:
        """Lift the ban inside. Also a decorator."""
        return self.guard.allow()

    @property
    def has_graphs(self) -> bool:
        return False

    def capture(self, fn: Callable[[], None]) -> None:
        """None: there are no graphs on the CPU. `fn` is not called."""

    @property
    def architecture(self) -> None:
        """None: what runs here runs on every CPU."""

    @property
    def num_compiled(self) -> int:
        """0: the reference is not compiled."""
        return 0

    def memory(self) -> None:
        """None: the memory is the host's, and not this process's alone."""

    def release_memory(self) -> None:
        """Nothing is kept."""

    def close(self) -> None:
        """Finish queued work and end the thread. Events and results stay usable; launching again is an error."""
        self._stream.close()


if TYPE_CHECKING:
    _satisfies_the_protocol: Backend = CpuBackend()
