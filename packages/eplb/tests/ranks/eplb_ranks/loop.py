"""A rank as an engine would run it: count, plan in the background, move, watch, all between steps."""

from __future__ import annotations

from typing import Any

import numpy as np
from eplb_ranks.moe import fits, layer_weights
from eplb_ranks.moves import EXPERTS, LAYERS, PATIENCE_S, make_transport
from numpy.typing import NDArray

from thalweg.eplb import (
    BackgroundPlanner,
    BalanceMonitor,
    CountingWindow,
    Placement,
    RearrangementSchedule,
    ScheduleConfig,
    StepSplit,
    imbalance,
    imbalance_per_layer,
    limit_layers,
    plan,
    rank_loads,
)
from thalweg.eplb.executors import Rearranger, StoreChannel, sum_counts
from thalweg.interfaces import StepKind

STEPS = 60
LAYERS_AT_A_TIME = 2


def routed(step: int) -> NDArray[np.int64]:
    """[layers, experts] tokens of all ranks in a step: some experts are always busy, others than the first ones."""
    rates = np.roll((1.0 + np.arange(EXPERTS)) ** -1.0, 3)
    return np.random.default_rng(step).multinomial(1000, rates / rates.sum(), LAYERS)


class Balancer:
    """What an engine holds on one rank, and does after every step."""

    def __init__(self, store: Any, rank: int, size: int) -> None:
        placement = Placement.initial(LAYERS, EXPERTS, size * (EXPERTS // size + 2), size)
        self.weights = [layer_weights(placement, layer, rank) for layer in range(LAYERS)]
        plans, moves = (StoreChannel(store, rank, size, timeout_s=PATIENCE_S, name=name) for name in ("plans", "moves"))
        transport = make_transport("peers", store, self.weights[0], PATIENCE_S)
        self.rearranger = Rearranger(self.weights, placement, transport, moves)
        self.planner = BackgroundPlanner(self.make_plan, plans)
        self.schedule = RearrangementSchedule(ScheduleConfig(interval=24, window=24))
        self.window = CountingWindow(24, LAYERS, EXPERTS)
        self.monitor = BalanceMonitor(LAYERS, self.rearranger.expert_bytes)
        self.promised = np.full(LAYERS, np.nan)  # known where plans are made
        self.sums: list[NDArray[np.int32]] = []
        self.rank = rank

    def make_plan(self, history: NDArray[Any], current: Placement) -> Placement:
        target = plan(history, current.num_slots, current.num_ranks, current=current)
        target = limit_layers(current, target, history, LAYERS_AT_A_TIME)
        self.promised = imbalance_per_layer(rank_loads(history, target))
        return target

    @property
    def is_busy(self) -> bool:
        return self.planner.is_planning or self.rearranger.is_moving

    def count(self, step: int) -> None:
        """Record what a dispatch counts: this rank's slots in the window, all ranks' loads in the monitor."""
        placement = self.rearranger.placement
        received = StepSplit(placement, sweeps=0).split(routed(step))
        own = np.s_[:, self.rank * placement.slots_per_rank : (self.rank + 1) * placement.slots_per_rank]
        self.window.record(received[own], placement.logical_of_physical[own])
        loads = received.reshape(LAYERS, placement.num_ranks, -1).sum(axis=2)
        self.monitor.record(loads.T[:, None])

    def move_on(self, step: int) -> None:
        """What planning and moving need between two steps."""
        if (target := self.planner.poll()) is not None:
            self.rearranger.start(target)
        before = self.rearranger.placement
        if self.rearranger.advance():
            self.monitor.adopt(step + 1, before, self.rearranger.placement, self.promised)


def run_balanced(store: Any, rank: int, size: int) -> dict[str, Any]:
    """Where the experts are in the end, what the traffic makes of it before and after, and what the monitor says."""
    balancer = Balancer(store, rank, size)
    initial = balancer.rearranger.placement
    for step in range(STEPS):
        balancer.count(step)
        if balancer.schedule.observe(StepKind.DECODE).rearranges and not balancer.is_busy:
            balancer.sums.append(sum_counts(balancer.window.history()))
            balancer.planner.start(balancer.sums[-1], balancer.rearranger.placement)
        balancer.move_on(step)
        while balancer.is_busy:  # steps are over sooner here than plans are made
            balancer.move_on(step)
    later = np.stack([routed(step) for step in range(STEPS, 2 * STEPS)])
    placement = balancer.rearranger.placement
    return {
        "sums": balancer.sums,
        "slots": placement.logical_of_physical,
        "fits": fits(balancer.weights, balancer.rearranger.tables, rank),
        "before": imbalance(rank_loads(later, initial)),
        "after": imbalance(rank_loads(later, placement)),
        "report": balancer.monitor.report(STEPS),
    }
