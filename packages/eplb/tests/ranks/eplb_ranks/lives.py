"""Random rearrangements, in some of which a rank is killed at a random moment."""

from __future__ import annotations

import random
import threading
import time
from typing import Any

import numpy as np
from eplb_ranks.moe import fits, layer_weights, random_placement
from eplb_ranks.moves import TIMEOUT_S, kill, make_transport

from thalweg.eplb.executors import Rearranger, StoreChannel
from thalweg.interfaces import PeerDiedError

REARRANGEMENTS = 6


def live(store: Any, rank: int, size: int, kind: str, seed: int, victim: int | None) -> dict[str, Any]:
    """What this rank sees of several rearrangements; of the rank that was lost, if one was, and how far they came."""
    rng = random.Random(seed)  # the same on all ranks
    layers, experts = rng.randint(1, 4), rng.randint(size, 24)
    slots = size * (-(-experts // size) + rng.randint(0, 2))
    death_s = rng.uniform(0.0, 0.3)
    placement = random_placement(rng.randrange(2**32), layers, experts, slots, size)
    weights = [layer_weights(placement, layer, rank) for layer in range(layers)]
    transport = make_transport(kind, store, weights[0], TIMEOUT_S)
    channel = StoreChannel(store, rank, size, timeout_s=2 * TIMEOUT_S, name="switches")
    rearranger = Rearranger(weights, placement, transport, channel)
    if rank == victim:
        threading.Timer(death_s, kill).start()
    targets = [random_placement(rng.randrange(2**32), layers, experts, slots, size) for _ in range(REARRANGEMENTS)]
    lost: tuple[int, ...] = ()
    always_fit = True
    try:
        for target in targets:
            rearranger.start(target)
            while rearranger.is_moving:
                rearranger.advance()
                always_fit &= fits(weights, rearranger.tables, rank)
                time.sleep(rng.uniform(0, 0.005))
    except PeerDiedError as error:
        lost = error.ranks
    tables = rearranger.tables.logical_of_physical.numpy()
    return {
        "lost": lost,
        "fits": always_fit and fits(weights, rearranger.tables, rank),
        "is_consistent": np.array_equal(tables, rearranger.placement.logical_of_physical),
        "slots": tables,
        "is_done": np.array_equal(tables, targets[-1].logical_of_physical),
    }
