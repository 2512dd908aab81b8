"""How the placement in use does: what its plan promised, what ranks really receive, its age, and what it moved."""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING

import numpy as np

from thalweg.eplb.metrics import imbalance_per_layer, moved_slots, rank_loads
from thalweg.interfaces import ConfigError

if TYPE_CHECKING:
    from numpy.typing import NDArray

    from thalweg.eplb.history import History
    from thalweg.eplb.placement import Placement


@dataclass(frozen=True, slots=True, eq=False)
class PlanRecord:
    """What is known about a placement when it is adopted."""

    step: int
    """The first step that runs under it."""
    planned_imbalance: NDArray[np.float64]
    """[layers] imbalance on the history that it was planned on: a plan looks better there than it will be."""
    moved_slots: NDArray[np.int64]
    """[layers] slots that ranks had to receive."""
    moved_bytes: NDArray[np.int64]
    """[layers] bytes of their weights."""


@dataclass(frozen=True, slots=True, eq=False)
class BalanceReport:
    """The state of a layout at one step; imbalances are sums of peaks over sums of means, 1 without traffic."""

    plan: PlanRecord | None
    """Of the placement in use; None: nothing was planned yet."""
    plan_age_steps: int | None
    live_imbalance: float
    """Of what ranks received since the last report, over all layers."""
    live_imbalance_per_layer: NDArray[np.float64]
    """[layers]"""


class BalanceMonitor:
    """Collects the loads of a layout's ranks between reports, and remembers the last plan."""

    def __init__(self, num_layers: int, expert_bytes: int) -> None:
        """expert_bytes: of all weights of one expert in one layer, as they are moved."""
        for name, value in (("num_layers", num_layers), ("expert_bytes", expert_bytes)):
            if value < 1:
                raise ConfigError(f"{name} is {value}; it must be >= 1")
        self._expert_bytes = expert_bytes
        self._plan: PlanRecord | None = None
        self._peaks, self._means = np.zeros((2, num_layers))

    def adopt(self, step: int, old: Placement, new: Placement, history: History) -> PlanRecord:
        """Note that `new`, planned on this history, replaces `old` from this step on."""
        moved = moved_slots(old, new)
        planned = imbalance_per_layer(rank_loads(history, new))
        self._plan = PlanRecord(step, planned, moved, moved * self._expert_bytes)
        return self._plan

    def record(self, loads: NDArray[np.int64]) -> None:
        """Add steps. loads: [ranks, steps, layers] tokens that every rank received, as gathered from them."""
        if loads.ndim != 3 or loads.shape[2] != len(self._peaks):
            raise ConfigError(f"loads have shape {loads.shape}; it must be [ranks, steps, {len(self._peaks)} layers]")
        self._peaks += loads.max(axis=0).sum(axis=0)
        self._means += loads.mean(axis=0).sum(axis=0)

    def report(self, step: int) -> BalanceReport:
        """What was collected since the last report, which starts anew; `step` is the one that runs next."""
        with np.errstate(invalid="ignore"):
            per_layer = np.where(self._means > 0, self._peaks / self._means, 1.0)
        mean = self._means.sum()
        live = float(self._peaks.sum() / mean) if mean else 1.0
        self._peaks[:], self._means[:] = 0, 0
        age = None if self._plan is None else step - self._plan.step
        return BalanceReport(self._plan, age, live, per_layer)
