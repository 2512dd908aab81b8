"""What ranks with weights on devices do: replay a recorded graph that reads weights and tables while experts move."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import torch
from eplb_ranks.moe import expert_tensors, fits, layer_weights
from eplb_ranks.moves import EXPERTS, LAYERS, PATIENCE_S, Slow, make_transport, placement_for

from thalweg.eplb.executors import LiveTables, Rearranger, StoreChannel

SLOW_STEP = 2048
"""Rows of a product that keeps the engine's stream busy, so that switches are queued behind steps."""


def checksums(weights: list[list[torch.Tensor]], tables: LiveTables, rank: int, sums: torch.Tensor) -> None:
    """Set sums [layers, experts], of the experts that the tables say this rank has, to what their slots hold."""
    for layer, (up, _) in enumerate(weights):
        own = tables.logical_of_physical[layer, rank * len(up) : (rank + 1) * len(up)]
        sums[layer].scatter_(0, own.long(), up.view(torch.int16).long().sum(dim=(1, 2)))


def checksum(up: torch.Tensor) -> int:
    return int(up.view(torch.int16).long().sum())


def recorded(step: Callable[[], None], device: torch.device) -> Callable[[], None]:
    """The step as a graph on a device; itself on the host."""
    if device.type == "cpu":
        return step
    graph = torch.cuda.CUDAGraph()
    with torch.cuda.graph(graph):
        step()
    return graph.replay


def replay_while_moving(store: Any, rank: int, size: int, kind: str, device_type: str) -> dict[str, Any]:
    """Whether every step saw the right experts, weights and tables fit in the end, and steps ran meanwhile."""
    device = torch.device(device_type)
    if device_type != "cpu":
        device = torch.device(device_type, rank % torch.accelerator.device_count())
        torch.accelerator.set_device_index(device)
    placement = placement_for(0, size)
    weights = [[t.to(device) for t in layer_weights(placement, layer, rank)] for layer in range(LAYERS)]
    expected = torch.tensor([[checksum(expert_tensors(n, e)[0]) for e in range(EXPERTS)] for n in range(LAYERS)])
    expected = expected.to(device)
    transport = Slow(make_transport(kind, store, weights[0], PATIENCE_S), pause_s=0.02)
    channel = StoreChannel(store, rank, size, timeout_s=PATIENCE_S, name="switches")
    rearranger = Rearranger(weights, placement, transport, channel)
    sums, busy = torch.zeros_like(expected), torch.randn(SLOW_STEP, SLOW_STEP, device=device)
    step = recorded(lambda: checksums(weights, rearranger.tables, rank, sums), device)
    is_right, switched = [], []
    for seed in (1, 2):
        rearranger.start(placement_for(seed, size))
        while rearranger.is_moving:
            switched.append(rearranger.advance())
            busy @ busy
            sums.copy_(expected)
            step()
            is_right.append(torch.equal(sums, expected))
    return {"is_right": is_right, "switched": switched, "fits": fits(weights, rearranger.tables, rank)}
