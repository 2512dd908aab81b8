"""What ranks need in tests of rearrangements, and how one of them is lost."""

from __future__ import annotations

import os
import signal
import time
from collections.abc import Callable, Sequence
from datetime import timedelta
from typing import Any

import numpy as np
import torch
import torch.distributed as dist
from eplb_ranks.host_symmetric import HostSymmetricMemory
from eplb_ranks.moe import fits, layer_weights, random_placement

from thalweg.eplb.executors import (
    PointToPoint,
    Rearranger,
    SharedMemory,
    StoreChannel,
    SymmetricMemory,
    Transport,
)
from thalweg.eplb.placement import Placement
from thalweg.eplb.transfer import LayerTransfers
from thalweg.interfaces import PeerDiedError

LAYERS, EXPERTS = 3, 10
TIMEOUT_S = 2.0
"""Of a transfer, where a rank is going to be lost."""
PATIENCE_S = 30.0
"""Of everything else, on machines that are busy with others."""


def placement_for(seed: int, size: int) -> Placement:
    return random_placement(seed, LAYERS, EXPERTS, size * (EXPERTS // size + 2), size)


def make_transport(kind: str, store: Any, like: Sequence[torch.Tensor], timeout_s: float) -> Transport:
    """peers, shared, symmetric; stand-in: symmetric with host memory in place of the devices'."""
    if kind == "peers":
        backend = "gloo" if like[0].device.type == "cpu" else "nccl"
        group = dist.new_group(timeout=timedelta(seconds=PATIENCE_S), backend=backend)
        return PointToPoint(group, like[0].device, timeout_s=timeout_s)
    channel = StoreChannel(store, dist.get_rank(), dist.get_world_size(), timeout_s=timeout_s, name="mirrors")
    if kind == "shared":
        return SharedMemory(channel, like)
    if kind == "stand-in":
        HostSymmetricMemory.take_the_place_of_torch()
    return SymmetricMemory(dist.new_group(backend="gloo"), channel, like)


class Slow:
    """A transport that leaves time for steps, and on one rank fails in some layer: `failure` is called instead."""

    def __init__(self, inner: Transport, pause_s: float, failure: Any = None, failing_call: int = -1) -> None:
        self._inner, self._pause_s = inner, pause_s
        self._failure, self._failing_call = failure, failing_call
        self._calls = 0

    def fetch(self, plan: LayerTransfers, weights: Sequence[torch.Tensor], staging: Sequence[torch.Tensor]) -> None:
        time.sleep(self._pause_s)
        if self._calls == self._failing_call:
            self._failure()
        self._calls += 1
        self._inner.fetch(plan, weights, staging)


def lose(store: Any, rank: int, size: int, kind: str, failing_call: int, how: str) -> dict[str, Any]:
    """Rank 1 fails when it comes to stage a layer; what the others then have and say."""
    placement = placement_for(0, size)
    weights = [layer_weights(placement, layer, rank) for layer in range(LAYERS)]
    transport = make_transport(kind, store, weights[0], TIMEOUT_S)
    if rank == 1:
        failure = {"killed": kill, "silent": _stay_silent}[how]
        transport = Slow(transport, 0.0, failure, failing_call)
    channel = StoreChannel(store, rank, size, timeout_s=2 * TIMEOUT_S, name="switches")
    rearranger = Rearranger(weights, placement, transport, channel)
    target = placement_for(1, size)
    rearranger.start(target)
    switched: list[int] = []
    try:
        while rearranger.is_moving:
            switched += rearranger.advance()
            time.sleep(0.01)
    except PeerDiedError as error:
        slots = rearranger.tables.logical_of_physical.numpy()
        old, new = placement.logical_of_physical, target.logical_of_physical
        expected = [new[layer] if layer in switched else old[layer] for layer in range(LAYERS)]
        assert np.array_equal(slots, expected)
        assert fits(weights, rearranger.tables, rank)
        later = [complaint(rearranger.advance), complaint(lambda: rearranger.start(target))]
        return {"message": str(error), "ranks": error.ranks, "switched": switched, "later": later}
    raise AssertionError("nobody noticed")


def complaint(action: Callable[[], object]) -> str:
    """What PeerDiedError says that the action raises; empty if it raises none."""
    try:
        action()
    except PeerDiedError as error:
        return str(error)
    return ""


def kill() -> None:
    os.kill(os.getpid(), signal.SIGKILL)


def _stay_silent() -> None:
    """The rank lives and steps on, but its part of the transfer is never done."""
    time.sleep(3600)
