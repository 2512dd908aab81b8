"""How the placement in use does: what its plans promised, what ranks really receive, its age, and what was moved."""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING

import numpy as np

from thalweg.eplb._checks import described, require_integer, require_loads
from thalweg.eplb.metrics import moved_slots
from thalweg.eplb.placement import check_same_shape
from thalweg.eplb.slots import LARGEST_SIZE
from thalweg.interfaces import ConfigError

if TYPE_CHECKING:
    from numpy.typing import NDArray

    from thalweg.eplb.placement import Placement

_LAST_STEP = 2**63 - 1


@dataclass(frozen=True, slots=True, eq=False)
class BalanceReport:
    """The state of a layout at one step; imbalances are sums of peaks over sums of means, 1 without traffic."""

    live_imbalance: float
    """Of what ranks received since the last report, over all layers."""
    live_imbalance_per_layer: NDArray[np.float64]
    """[layers]"""
    planned_imbalance: NDArray[np.float64]
    """[layers] on the history that the layer was planned on, where a plan looks better than it will be; nan: it never
    was planned."""
    age_steps: NDArray[np.int64]
    """[layers] steps since the layer's experts were moved last, or since the first step."""
    moved_slots: NDArray[np.int64]
    """[layers] slots that ranks had to receive, in all so far."""
    moved_bytes: NDArray[np.int64]
    """[layers] bytes of their weights."""


class BalanceMonitor:
    """Collects the loads of a layout's ranks between reports, and remembers what was moved when."""

    def __init__(self, num_layers: int, expert_bytes: int, first_step: int = 0) -> None:
        """expert_bytes: of all weights of one expert in one layer, as they are moved.

        Raises ConfigError for what are no such numbers.
        """
        require_integer("num_layers", num_layers, 1, LARGEST_SIZE)
        require_integer("expert_bytes", expert_bytes, 1)
        require_integer("first_step", first_step, 0, _LAST_STEP)
        self._expert_bytes = expert_bytes
        self._planned = np.full(num_layers, np.nan)
        self._since = np.full(num_layers, first_step, np.int64)
        self._moved = np.zeros(num_layers, np.int64)
        self._peaks, self._means = np.zeros((2, num_layers))

    def adopt(self, step: int, old: Placement, new: Placement, planned_imbalance: NDArray[np.float64]) -> None:
        """Note the layers in which `new` differs from `old`, and replaces it from this step on.

        planned_imbalance: [layers] of the plan on its own history, from `rank_loads` and `imbalance_per_layer`; only
        that of layers which differ is read. Raises ConfigError for other shapes or types.
        """
        num_layers = len(self._planned)
        require_integer("step", step, 0, _LAST_STEP)
        check_same_shape(old=old, new=new)
        if not isinstance(planned_imbalance, np.ndarray) or planned_imbalance.dtype.kind not in "iuf":
            raise ConfigError(f"planned_imbalance is {described(planned_imbalance)}; it must be an array of floats")
        if planned_imbalance.shape != (num_layers,) or old.num_layers != num_layers:
            found = f"{old.num_layers} layers and planned_imbalance of {planned_imbalance.shape}"
            raise ConfigError(f"adopted are {found}; it must be {num_layers} of both")
        self._moved += moved_slots(old, new)
        changed = (old.logical_of_physical != new.logical_of_physical).any(axis=1)
        self._planned[changed] = planned_imbalance[changed]
        self._since[changed] = step

    def record(self, loads: NDArray[np.int64]) -> None:
        """Add steps. loads: [ranks, steps, layers] tokens that every rank received, as gathered from them.

        Raises ConfigError for what is no array of finite numbers >= 0, or of another shape; nothing is added then.
        """
        require_loads("loads", loads)
        if loads.ndim != 3 or loads.shape[2] != len(self._peaks) or not len(loads):
            raise ConfigError(f"loads have shape {loads.shape}; it must be [ranks, steps, {len(self._peaks)} layers]")
        self._peaks += loads.max(axis=0).sum(axis=0, dtype=np.float64)
        self._means += loads.mean(axis=0, dtype=np.float64).sum(axis=0)

    def report(self, step: int) -> BalanceReport:
        """What was collected since the last report, which starts anew; `step` is the one that runs next.

        Raises ConfigError for what is no step.
        """
        require_integer("step", step, 0, _LAST_STEP)
        with np.errstate(invalid="ignore"):
            per_layer = np.where(self._means > 0, self._peaks / self._means, 1.0)
        mean = self._means.sum()
        live = float(self._peaks.sum() / mean) if mean else 1.0
        self._peaks[:], self._means[:] = 0, 0
        moved = self._moved.copy()
        return BalanceReport(
            live, per_layer, self._planned.copy(), step - self._since, moved, moved * self._expert_bytes
        )
