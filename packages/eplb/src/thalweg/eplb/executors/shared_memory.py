"""Experts read from the host memory of other ranks of the same host."""

from __future__ import annotations

import mmap
import os
from collections.abc import Sequence
from typing import TYPE_CHECKING

import torch

from thalweg.eplb.executors.mirrors import as_layer, fetch_through, mirror_bytes
from thalweg.eplb.transfer import LayerTransfers
from thalweg.interfaces import BackendUnavailableError, ConfigError

if TYPE_CHECKING:
    from thalweg.eplb.background import Channel


class SharedMemory:
    """Transport within a Linux host, for weights in host memory: one copy in, one copy out, no sockets.

    Every rank has a mirror of one layer that all others map. Mirrors have no name, so nothing is left behind however a
    rank ends. Making one is a collective.
    channel: of all ranks, for this transport alone, since it is used from another thread than the engine's. like: the
    tensors of a layer, [slots, ...] each.
    Raises BackendUnavailableError where memory cannot be shared so, ConfigError for weights on a device.
    """

    def __init__(self, channel: Channel, like: Sequence[torch.Tensor]) -> None:
        if any(tensor.device.type != "cpu" for tensor in like):
            raise ConfigError("the weights are on a device; SharedMemory moves weights in host memory")
        self._channel = channel
        size = mirror_bytes(like)
        try:
            own = os.memfd_create("thalweg-eplb", os.MFD_CLOEXEC)
            os.ftruncate(own, size)
            answers = channel.exchange(f"{os.getpid()} {own}".encode())
            maps = [_map(f"/proc/{pid}/fd/{fd}", size) for pid, fd in (answer.decode().split() for answer in answers)]
        except (AttributeError, OSError) as error:
            raise BackendUnavailableError(f"memory cannot be shared between the ranks: {error}") from error
        channel.exchange(b"mapped")
        os.close(own)  # the maps keep the memory
        self._mirrors = [as_layer(torch.frombuffer(memory, dtype=torch.uint8), like) for memory in maps]

    def fetch(self, plan: LayerTransfers, weights: Sequence[torch.Tensor], staging: Sequence[torch.Tensor]) -> None:
        """Show what others need of `weights` and copy what this rank needs into `staging`."""
        fetch_through(self._mirrors, self._channel, plan, weights, staging)


def _map(path: str, size: int) -> mmap.mmap:
    with open(path, "r+b", buffering=0) as file:
        return mmap.mmap(file.fileno(), size)
