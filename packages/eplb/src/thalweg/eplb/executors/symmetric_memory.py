"""Experts read from the device memory of other ranks, over NVLink or within a device."""

from __future__ import annotations

from collections.abc import Sequence
from typing import TYPE_CHECKING

import torch
import torch.distributed as dist
import torch.distributed._symmetric_memory as symm_mem

from thalweg.eplb.executors.mirrors import as_layer, fetch_through, mirror_bytes
from thalweg.eplb.transfer import LayerTransfers
from thalweg.interfaces import BackendUnavailableError, ConfigError

if TYPE_CHECKING:
    from thalweg.eplb.background import Channel


class SymmetricMemory:
    """Transport within an NVLink domain, for weights on devices: no network, no kernel that waits for another rank.

    Every rank has a mirror of one layer in symmetric memory, slots_per_rank experts large. Making one is a collective.
    group: of all ranks, any backend; it only makes the memory known. channel: of all ranks, for this transport alone,
    since it is used from another thread than the engine's. like: the tensors of a layer, [slots, ...] each.
    Raises BackendUnavailableError where torch cannot share memory so: on the host, or between these devices.
    """

    def __init__(self, group: dist.ProcessGroup, channel: Channel, like: Sequence[torch.Tensor]) -> None:
        size = mirror_bytes(like)
        try:
            own = symm_mem.empty(size, dtype=torch.uint8, device=like[0].device)
            handle = symm_mem.rendezvous(own, group)
        except RuntimeError as error:
            raise BackendUnavailableError(f"the ranks cannot share memory of their devices: {error}") from error
        if handle.rank != channel.rank:
            raise ConfigError(f"channel has rank {channel.rank} and group {handle.rank}; the ranks must be the same")
        self._channel = channel
        self._kept = own, handle  # as long as the others may read, and for what they show
        self._mirrors = [
            as_layer(handle.get_buffer(rank, (size,), torch.uint8), like) for rank in range(handle.world_size)
        ]

    def fetch(self, plan: LayerTransfers, weights: Sequence[torch.Tensor], staging: Sequence[torch.Tensor]) -> None:
        """Show what others need of `weights` and copy what this rank needs into `staging`."""
        fetch_through(self._mirrors, self._channel, plan, weights, staging)
