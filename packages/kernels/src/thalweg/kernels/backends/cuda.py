"""What the backends of CUDA devices share: memory, copies, the ban on host synchronisation, graphs."""

# torch.cuda has functions without annotations.
# mypy: disable-error-code="no-untyped-call"

from __future__ import annotations

import contextlib
import gc
import warnings
import weakref
from collections.abc import Callable, Iterator, Sequence
from typing import Any

import torch

from thalweg.interfaces import DeviceMemory, InvariantError
from thalweg.kernels.backends.cuda_device import find_device
from thalweg.kernels.backends.cuda_stream import CudaEvent, CudaStream
from thalweg.kernels.catalog import default_registry
from thalweg.kernels.registry import Registry
from thalweg.kernels.sm90.library import num_compiled
from thalweg.kernels.sync_guard import SyncGuard, cuda_sync_mode


class CudaBackend:
    """thalweg.interfaces.Backend for the current CUDA device.

    Its stream is the device's default stream, so what is computed outside of launched work (weights that are loaded,
    for example) is in order with it. Pinned memory comes from torch, which hands it on only when the copies that read
    or write it have run. `guard.enabled = False` switches the ban on host synchronisation off.

    name: of the backend. capability: that the device must have. architecture: of its kernels. Raises
    BackendUnavailableError where there is no such device, or nothing to use it with.
    """

    def __init__(self, name: str, capability: tuple[int, int], architecture: str) -> None:
        self._name = name
        self._architecture = architecture
        self._device = find_device(name, capability)
        self._guard = SyncGuard(*cuda_sync_mode())
        self._stream = CudaStream(torch.cuda.default_stream(self._device))
        self._capture_stream = torch.cuda.Stream(self._device)
        self._pool: Any = None
        self._graphs: weakref.WeakSet[CudaGraph] = weakref.WeakSet()
        """Those that hold the pool; it goes when they do."""
        self._is_closed = False
        _say_nothing_of_the_check()

    @property
    def name(self) -> str:
        """Of the backend, as options name it."""
        return self._name

    @property
    def device(self) -> torch.device:
        """The CUDA device, with its index."""
        return self._device

    @property
    def device_name(self) -> str:
        """The GPU's name."""
        return str(torch.cuda.get_device_name(self._device))

    @property
    def architecture(self) -> str:
        """What its kernels are compiled for."""
        return self._architecture

    @property
    def registry(self) -> Registry:
        """The ops of this package and their implementations."""
        return default_registry()

    @property
    def guard(self) -> SyncGuard:
        """The guard behind `no_host_sync` and `allow_host_sync`, over the mode of torch.cuda."""
        return self._guard

    def empty(self, shape: Sequence[int], dtype: torch.dtype, *, pinned: bool = False) -> torch.Tensor:
        """An uninitialised tensor on the device, or in pinned host memory."""
        if pinned:
            return torch.empty(tuple(shape), dtype=dtype, pin_memory=True)
        return torch.empty(tuple(shape), dtype=dtype, device=self._device)

    def stream(self) -> CudaStream:
        """The backend's one stream. Raises InvariantError after `close`."""
        if self._is_closed:
            raise InvariantError(f"the backend {self._name} is closed; work can be launched before that")
        return self._stream

    def copy_to_host(self, tensor: torch.Tensor) -> tuple[torch.Tensor, CudaEvent]:
        """A pinned copy of what the work launched so far leaves in `tensor`, and the event after which it is valid."""
        copy = self.empty(tensor.shape, tensor.dtype, pinned=True)
        with torch.cuda.stream(self._stream.stream):
            copy.copy_(tensor.detach(), non_blocking=True)
        return copy, self._stream.record()

    def read(self, tensor: torch.Tensor) -> torch.Tensor:
        """A copy of what the work launched so far leaves in `tensor`; blocks. Raises RuntimeError where forbidden."""
        with torch.cuda.stream(self._stream.stream):
            return tensor.detach().cpu()

    def no_host_sync(self) -> contextlib.AbstractContextManager[None]:
        """Calls of torch that block on the device raise RuntimeError inside. Also a decorator."""
        return self._guard.forbid()

    def allow_host_sync(self) -> contextlib.AbstractContextManager[None]:
        """Lift the ban inside. Also a decorator."""
        return self._guard.allow()

    @property
    def has_graphs(self) -> bool:
        """True: `capture` makes CUDA graphs."""
        return True

    def capture(self, fn: Callable[[], None]) -> CudaGraph:
        """A graph of `fn`, which runs once before it is captured. Blocks.

        Both happen on a stream of their own: what a library keeps per stream is there when the graph is captured. The
        memory of all graphs of this backend is one pool.
        """
        if not self._graphs:
            self._pool = torch.cuda.graph_pool_handle()
        side, graph = self._capture_stream, torch.cuda.CUDAGraph()
        with self.allow_host_sync(), torch.cuda.device(self._device), _no_garbage_collection():
            self._stream.synchronize()
            with torch.cuda.stream(side):
                fn()
                side.synchronize()
                graph.capture_begin(pool=self._pool, capture_error_mode="thread_local")
                try:
                    fn()
                except BaseException:
                    self._abandon(graph)
                    raise
                graph.capture_end()
        captured = CudaGraph(graph, self._stream)
        self._graphs.add(captured)
        return captured

    def _abandon(self, graph: torch.cuda.CUDAGraph) -> None:
        """End a capture that failed. It says so again, and leaves the allocator in the middle of it."""
        with contextlib.suppress(RuntimeError):
            graph.capture_end()
        with contextlib.suppress(RuntimeError):
            torch._C._cuda_endAllocateToPool(self._device.index, self._pool)

    @property
    def num_compiled(self) -> int:
        """Kernels built or loaded in this process so far."""
        return num_compiled()

    def memory(self) -> DeviceMemory:
        """The device's memory; of this process, what torch's allocator has."""
        free, total = torch.cuda.mem_get_info(self._device)
        used, peak = torch.cuda.memory_reserved(self._device), torch.cuda.max_memory_reserved(self._device)
        return DeviceMemory(total, free, used, peak)

    def release_memory(self) -> None:
        """Empty the allocator's cache, but not that of pinned memory; a new peak begins. Blocks."""
        with self.allow_host_sync():
            torch.cuda.synchronize(self._device)
        gc.collect()
        torch.cuda.empty_cache()
        torch.cuda.reset_peak_memory_stats(self._device)

    def close(self) -> None:
        """Finish queued work. Results stay usable; launching again is an error."""
        if not self._is_closed:
            self._is_closed = True
            with self.allow_host_sync(), contextlib.suppress(RuntimeError):  # whoever waits for failed work is told
                self._stream.stream.synchronize()


class CudaGraph:
    """thalweg.interfaces.Graph, replayed on the backend's stream."""

    def __init__(self, graph: torch.cuda.CUDAGraph, stream: CudaStream) -> None:
        self._graph = graph
        self._stream = stream

    def replay(self) -> None:
        """Queue it again, on the current contents of its buffers."""
        with torch.cuda.stream(self._stream.stream):
            self._graph.replay()


@contextlib.contextmanager
def _no_garbage_collection() -> Iterator[None]:
    """A graph that is freed while another one is captured would spoil that."""
    was_enabled = gc.isenabled()
    gc.disable()
    try:
        yield
    finally:
        if was_enabled:
            gc.enable()


def _say_nothing_of_the_check() -> None:
    """Use up torch's one warning that its check of blocking calls does not find all of them."""
    mode = torch.cuda.get_sync_debug_mode()
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")
        torch.cuda.set_sync_debug_mode("warn")
    torch.cuda.set_sync_debug_mode(mode)
