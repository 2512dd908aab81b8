"""A rank as an engine would run it: count, plan in the background, move, all between steps."""

from __future__ import annotations

from typing import Any

import numpy as np
from eplb_ranks.moe import fits, layer_weights
from eplb_ranks.moves import EXPERTS, LAYERS, PATIENCE_S, make_transport
from numpy.typing import NDArray

from thalweg.eplb import (
    BackgroundPlanner,
    CountingWindow,
    Placement,
    RearrangementSchedule,
    ScheduleConfig,
    StepSplit,
    imbalance,
    plan,
    rank_loads,
)
from thalweg.eplb.executors import Rearranger, StoreChannel, sum_counts
from thalweg.interfaces import StepKind

STEPS = 60


def routed(step: int) -> NDArray[np.int64]:
    """[layers, experts] tokens of all ranks in a step: some experts are always busy, others than the first ones."""
    rates = np.roll((1.0 + np.arange(EXPERTS)) ** -1.0, 3)
    return np.random.default_rng(step).multinomial(1000, rates / rates.sum(), LAYERS)


def move_on(planner: BackgroundPlanner, rearranger: Rearranger) -> None:
    """What planning and moving need between two steps."""
    target = planner.poll()
    if target is not None:
        rearranger.start(target)
    rearranger.advance()


def run_balanced(store: Any, rank: int, size: int) -> dict[str, Any]:
    """Where the experts are in the end, and what the traffic makes of it before and after."""
    num_slots = size * (EXPERTS // size + 2)
    initial = Placement.initial(LAYERS, EXPERTS, num_slots, size)
    weights = [layer_weights(initial, layer, rank) for layer in range(LAYERS)]
    schedule = RearrangementSchedule(ScheduleConfig(interval=24, window=24))
    window = CountingWindow(24, LAYERS, EXPERTS)
    plans, moves = (StoreChannel(store, rank, size, timeout_s=PATIENCE_S, name=name) for name in ("plans", "moves"))
    planner = BackgroundPlanner(lambda history, now: plan(history, num_slots, size, current=now), plans)
    rearranger = Rearranger(weights, initial, make_transport("peers", store, weights[0], PATIENCE_S), moves)
    sums = []
    for step in range(STEPS):
        placement = rearranger.placement
        received = StepSplit(placement, sweeps=0).split(routed(step))  # what a dispatch counts
        own = np.s_[:, rank * placement.slots_per_rank : (rank + 1) * placement.slots_per_rank]
        window.record(received[own], placement.logical_of_physical[own])
        if schedule.observe(StepKind.DECODE).rearranges and not (planner.is_planning or rearranger.is_moving):
            sums.append(sum_counts(window.history()))
            planner.start(sums[-1], placement)
        move_on(planner, rearranger)
    while planner.is_planning or rearranger.is_moving:
        move_on(planner, rearranger)
    later = np.stack([routed(step) for step in range(STEPS, 2 * STEPS)])
    return {
        "sums": sums,
        "slots": rearranger.placement.logical_of_physical,
        "fits": fits(weights, rearranger.tables, rank),
        "before": imbalance(rank_loads(later, initial)),
        "after": imbalance(rank_loads(later, rearranger.placement)),
    }
