"""Host memory that takes the part of torch's symmetric memory, so that its user can be tried without devices."""

from __future__ import annotations

import mmap
import os
from collections.abc import Sequence

import torch
import torch.distributed as dist

from thalweg.eplb.executors import symmetric_memory


class HostSymmetricMemory:
    """What `torch.distributed._symmetric_memory` promises, as far as it is used: empty, rendezvous, get_buffer."""

    def __init__(self, buffers: list[torch.Tensor], rank: int) -> None:
        self._buffers = buffers
        self.rank, self.world_size = rank, len(buffers)

    @classmethod
    def take_the_place_of_torch(cls) -> None:
        symmetric_memory.symm_mem = cls

    @staticmethod
    def empty(size: int, *, dtype: torch.dtype, device: torch.device) -> torch.Tensor:
        assert (dtype, device.type) == (torch.uint8, "cpu")
        return torch.empty(size, dtype=dtype)

    @classmethod
    def rendezvous(cls, tensor: torch.Tensor, group: dist.ProcessGroup) -> HostSymmetricMemory:
        own = os.memfd_create("symmetric")
        os.ftruncate(own, tensor.nbytes)
        paths: list[str] = [""] * group.size()
        dist.all_gather_object(paths, f"/proc/{os.getpid()}/fd/{own}", group=group)
        buffers = [cls._map(path, tensor.nbytes) for path in paths]
        dist.barrier(group)
        return cls(buffers, group.rank())

    def get_buffer(self, rank: int, sizes: Sequence[int], dtype: torch.dtype) -> torch.Tensor:
        return self._buffers[rank].view(dtype).view(sizes)

    @staticmethod
    def _map(path: str, size: int) -> torch.Tensor:
        with open(path, "r+b", buffering=0) as file:
            return torch.frombuffer(mmap.mmap(file.fileno(), size), dtype=torch.uint8)
