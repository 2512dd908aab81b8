"""A small model that runs while its experts move."""

from __future__ import annotations

from typing import Any

import numpy as np
import torch
from eplb_ranks.moe import HIDDEN, SmallMoe, fits, layer_weights
from eplb_ranks.moves import EXPERTS, LAYERS, PATIENCE_S, Slow, make_transport, placement_for

from thalweg.eplb import StepSplit
from thalweg.eplb.executors import Rearranger, StoreChannel


def run_while_moving(store: Any, rank: int, size: int, kind: str, splits: bool) -> dict[str, Any]:
    """Outputs before, in every step while experts move twice over, and after; which layers switched in which step.

    splits: each step's tokens over the copies, where before they went in turn.
    """
    placement = placement_for(0, size)
    weights = [layer_weights(placement, layer, rank) for layer in range(LAYERS)]
    transport = Slow(make_transport(kind, store, weights[0], PATIENCE_S), pause_s=0.02)
    channel = StoreChannel(store, rank, size, timeout_s=PATIENCE_S, name="switches")
    rearranger = Rearranger(weights, placement, transport, channel)
    addresses = [tensor.data_ptr() for layer in weights for tensor in layer]
    model = SmallMoe(weights, EXPERTS, rank, size)
    x = torch.randn(5 + rank, HIDDEN, generator=torch.Generator().manual_seed(rank)).to(torch.bfloat16)
    before = model.run(x, rearranger.tables)
    switched, is_equal, is_fit = [], [], []
    for seed in (1, 2):
        target = placement_for(seed, size)
        rearranger.start(target)
        while rearranger.is_moving:
            switched.append(rearranger.advance())
            split = StepSplit(rearranger.placement) if splits else None
            is_equal.append(torch.equal(model.run(x, rearranger.tables, split), before))
            is_fit.append(fits(weights, rearranger.tables, rank))
        assert np.array_equal(rearranger.placement.logical_of_physical, target.logical_of_physical)
    assert addresses == [tensor.data_ptr() for layer in weights for tensor in layer]
    assert rearranger.tables.num_copies.tolist() == target.copies().tolist()
    return {"switched": switched, "is_equal": is_equal, "is_fit": is_fit, "output": before.float().numpy()}
