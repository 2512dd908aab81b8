"""Experts that ranks show each other in memory that all of them can read."""

from __future__ import annotations

from collections.abc import Sequence
from typing import TYPE_CHECKING

import torch

from thalweg.eplb.executors.staging import wait_for_current_stream
from thalweg.eplb.transfer import LayerTransfers

if TYPE_CHECKING:
    from thalweg.eplb.background import Channel

_ALIGNMENT = 256
"""Bytes; tensors begin where an allocator would let them begin."""


def mirror_bytes(like: Sequence[torch.Tensor]) -> int:
    """The size of memory that holds these tensors."""
    return sum(_room(tensor) for tensor in like)


def as_layer(memory: torch.Tensor, like: Sequence[torch.Tensor]) -> list[torch.Tensor]:
    """Tensors of these shapes one after another in the memory, uint8 of [mirror_bytes(like)]."""
    tensors, offset = [], 0
    for tensor in like:
        tensors.append(memory[offset : offset + tensor.nbytes].view(tensor.dtype).view(tensor.shape))
        offset += _room(tensor)
    return tensors


def fetch_through(
    mirrors: Sequence[Sequence[torch.Tensor]],
    channel: Channel,
    plan: LayerTransfers,
    weights: Sequence[torch.Tensor],
    staging: Sequence[torch.Tensor],
) -> None:
    """Show what others need of `weights` and copy what this rank needs into `staging`.

    mirrors: per rank, the memory in which it shows the tensors of a layer. Ranks tell each other on the host what is
    done: then a lost one is noticed and named, where a device would wait for it for ever.
    """
    rank, device = channel.rank, staging[0].device
    moves = [move for moves in plan.rounds for move in moves]
    for slot in {move.sender_slot for move in moves if move.sender == rank}:
        for mirror, tensor in zip(mirrors[rank], weights, strict=True):
            mirror[slot].copy_(tensor[slot])
    wait_for_current_stream(device)
    channel.exchange(b"shown")
    for move in moves:
        if move.receiver == rank:
            for mirror, tensor in zip(mirrors[move.sender], staging, strict=True):
                tensor[move.receiver_slot].copy_(mirror[move.sender_slot])
    wait_for_current_stream(device)
    channel.exchange(b"read")


def _room(tensor: torch.Tensor) -> int:
    return -(-tensor.nbytes // _ALIGNMENT) * _ALIGNMENT
