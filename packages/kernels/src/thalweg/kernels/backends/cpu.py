"""The backend that runs everywhere: torch on the CPU, one thread of control, ops from the reference."""

from __future__ import annotations

import contextlib
from collections.abc import Callable, Sequence
from typing import TYPE_CHECKING

import torch

from thalweg.kernels.catalog import default_registry
from thalweg.kernels.registry import Registry

if TYPE_CHECKING:
    from thalweg.interfaces import Backend, Event


class ImmediateEvent:
    """An event that has passed: CPU work is done when the call returns."""

    def done(self) -> bool:
        return True

    def wait(self) -> None:
        """Return at once."""


class ImmediateStream:
    """A queue that is always empty."""

    def record(self) -> ImmediateEvent:
        return ImmediateEvent()

    def wait(self, event: Event) -> None:
        event.wait()


class CpuBackend:
    """thalweg.interfaces.Backend for the CPU."""

    def __init__(self) -> None:
        self._stream = ImmediateStream()

    @property
    def name(self) -> str:
        return "cpu"

    @property
    def device(self) -> torch.device:
        return torch.device("cpu")

    @property
    def registry(self) -> Registry:
        return default_registry()

    def empty(self, shape: Sequence[int], dtype: torch.dtype, *, pinned: bool = False) -> torch.Tensor:
        """An uninitialised tensor; all host memory is alike here, so `pinned` changes nothing."""
        del pinned
        return torch.empty(tuple(shape), dtype=dtype, device=self.device)

    def stream(self) -> ImmediateStream:
        return self._stream

    def copy_to_host(self, tensor: torch.Tensor) -> tuple[torch.Tensor, ImmediateEvent]:
        """A copy that later writes to `tensor` do not reach."""
        return tensor.detach().clone(), ImmediateEvent()

    def no_host_sync(self) -> contextlib.AbstractContextManager[None]:
        """Nothing to forbid: host and device are one."""
        return contextlib.nullcontext()

    def capture(self, fn: Callable[[], None]) -> None:
        """None: there are no graphs on the CPU. `fn` is not called."""


if TYPE_CHECKING:
    _satisfies_the_protocol: Backend = CpuBackend()
