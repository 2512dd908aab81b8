"""Moving fewer layers at a time than a plan changes."""

from __future__ import annotations

from typing import TYPE_CHECKING

import numpy as np

from thalweg.eplb._checks import require_integer
from thalweg.eplb.metrics import peak_load
from thalweg.eplb.placement import check_same_shape

if TYPE_CHECKING:
    from thalweg.eplb.history import History
    from thalweg.eplb.placement import Placement


def limit_layers(current: Placement, target: Placement, history: History, most: int) -> Placement:
    """The current placement with at most this many layers of the target: those whose peak loads fall most.

    The others are for the next rearrangement, which plans them anew. history: what the target was planned on. Raises
    ConfigError for placements of different shapes and a `most` below 1.
    """
    require_integer("most", most, 1)
    check_same_shape(current=current, target=target)
    changed = (current.logical_of_physical != target.logical_of_physical).any(axis=1)
    if changed.sum() <= most:
        return target
    gain = np.where(changed, peak_load(history, current) - peak_load(history, target), -np.inf)
    chosen = np.zeros(len(gain), bool)
    chosen[np.argsort(-gain, kind="stable")[:most]] = True
    return current.with_layers(target, chosen)
