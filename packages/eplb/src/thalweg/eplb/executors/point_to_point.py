"""Experts sent from rank to rank with torch.distributed."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from datetime import timedelta
from typing import Any

import torch
import torch.distributed as dist

from thalweg.eplb.transfer import LayerTransfers
from thalweg.interfaces import ConfigError, PeerDiedError, shown


class PointToPoint:
    """Transport over a process group, between hosts or within one. Making one is a collective.

    group: of all expert-parallel ranks and for nothing else, since it is used from another thread than the engine's;
    its backend must take the weights' device. Its own timeout must be longer than `timeout_s`: NCCL ends the process
    then. device: of the weights. timeout_s: for one round; when it has passed, the peer counts as lost.
    """

    def __init__(self, group: dist.ProcessGroup, device: torch.device | str, *, timeout_s: float) -> None:
        if not 0 < timeout_s < float("inf"):
            raise ConfigError(f"timeout_s is {shown(timeout_s)}; it must be a number of seconds above 0")
        # NCCL connects in the first operation, which must be one of all ranks; not all take part in a round.
        dist.all_reduce(torch.zeros(1, device=device), group=group)
        self._group = group
        self._rank = dist.get_rank(group)
        self._timeout = timedelta(seconds=timeout_s)

    def fetch(self, plan: LayerTransfers, weights: Sequence[torch.Tensor], staging: Sequence[torch.Tensor]) -> None:
        """Send what others need of `weights` and receive into `staging`, round by round."""
        for number, moves in enumerate(plan.rounds):
            operations, peers = [], []
            for move in moves:
                if move.sender == self._rank:
                    rows = [tensor[move.sender_slot] for tensor in weights]
                    operations += [self._operation(dist.isend, row, move.receiver) for row in rows]
                    peers += [move.receiver] * len(rows)
                elif move.receiver == self._rank:
                    rows = [tensor[move.receiver_slot] for tensor in staging]
                    operations += [self._operation(dist.irecv, row, move.sender) for row in rows]
                    peers += [move.sender] * len(rows)
            if operations:
                self._run(operations, peers, number)

    def _operation(self, kind: Callable[..., Any], row: torch.Tensor, peer: int) -> dist.P2POp:
        # As bytes, because not every backend knows every number format.
        return dist.P2POp(kind, row.reshape(-1).view(torch.uint8), group=self._group, group_peer=peer)

    def _run(self, operations: list[dist.P2POp], peers: list[int], number: int) -> None:
        lost = set(peers)
        try:
            works = dist.batch_isend_irecv(operations)
            for index, work in enumerate(works):
                if len(works) == len(peers):  # NCCL makes one work of all
                    lost = {peers[index]}
                work.wait(self._timeout)  # with a timeout the thread waits, under NCCL too
        except RuntimeError as error:
            ranks = tuple(sorted(lost))
            names = ", ".join(f"rank {rank}" for rank in ranks)
            raise PeerDiedError(f"{names} did not complete transfer round {number}: {error}", ranks) from error
