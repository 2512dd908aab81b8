"""How good a placement is, and how much it moves."""

from __future__ import annotations

from typing import TYPE_CHECKING

import numpy as np

from thalweg.eplb._checks import described, require_loads
from thalweg.eplb.history import check_history, layer_counts
from thalweg.eplb.placement import check_placement, check_same_shape
from thalweg.interfaces import ConfigError

if TYPE_CHECKING:
    from numpy.typing import NDArray

    from thalweg.eplb.history import History
    from thalweg.eplb.placement import Placement


def rank_shares(placement: Placement, layer: int) -> NDArray[np.float64]:
    """[experts, ranks] the part of each expert's tokens that a rank receives if copies share evenly."""
    held = placement.logical_of_physical[layer]
    copies = np.bincount(held, minlength=placement.num_experts)
    shares = np.zeros((placement.num_experts, placement.num_ranks))
    np.add.at(shares, (held, np.arange(placement.num_slots) // placement.slots_per_rank), 1 / copies[held])
    return shares


def rank_loads(history: History, placement: Placement) -> NDArray[np.float64]:
    """[steps, layers, ranks] tokens each rank would have received under the placement, copies sharing evenly.

    Raises ConfigError for what is no history, and a placement of other layers or experts.
    """
    history = check_history(history)
    check_placement("placement", placement)
    num_steps, num_layers, num_experts = history.shape
    if (num_layers, num_experts) != (placement.num_layers, placement.num_experts):
        found, wanted = (placement.num_layers, placement.num_experts), (num_layers, num_experts)
        raise ConfigError(f"placement has (layers, experts) {found}; the history has {wanted}")
    loads = np.empty((num_steps, num_layers, placement.num_ranks))
    for layer in range(num_layers):
        loads[:, layer] = layer_counts(history, layer) @ rank_shares(placement, layer)
    return loads


def imbalance(loads: NDArray[np.float64]) -> float:
    """The sum of the peak rank loads over the sum of the mean ones: 1 is perfect, and what no traffic has.

    loads: [..., ranks]. A ratio of sums, so heavy steps and layers weigh more. Raises ConfigError for what is no array
    of finite numbers >= 0, and one without ranks.
    """
    require_loads("loads", loads)
    if loads.ndim < 1 or not loads.shape[-1]:
        raise ConfigError(f"loads is {described(loads)}; it must be [..., ranks], at least one rank")
    return _imbalance(loads)


def imbalance_per_layer(loads: NDArray[np.float64]) -> NDArray[np.float64]:
    """[layers] the imbalance of each layer. loads: [steps, layers, ranks], otherwise like `imbalance`."""
    require_loads("loads", loads)
    if loads.ndim != 3 or not loads.shape[2]:
        raise ConfigError(f"loads is {described(loads)}; it must be [steps, layers, ranks], at least one rank")
    return np.array([_imbalance(loads[:, layer]) for layer in range(loads.shape[1])])


def peak_load(history: History, placement: Placement) -> NDArray[np.float64]:
    """[layers] the sum over steps of the peak rank load: what planners minimise."""
    peaks: NDArray[np.float64] = rank_loads(history, placement).max(axis=2)
    return np.asarray(peaks.sum(axis=0))


def moved_slots(old: Placement, new: Placement) -> NDArray[np.int64]:
    """[layers] slots whose expert the rank did not hold before, copies counted: what has to be received.

    Slots exchanged inside a rank are not moved. Raises ConfigError for what are no placements of one shape.
    """
    check_same_shape(old=old, new=new)
    before, after = (_held_per_rank(placement) for placement in (old, new))
    return np.asarray(np.maximum(after - before, 0).sum(axis=(1, 2)))


def _imbalance(loads: NDArray[np.float64]) -> float:
    mean = loads.mean(axis=-1, dtype=np.float64).sum()
    return float(loads.max(axis=-1).sum(dtype=np.float64) / mean) if mean else 1.0


def _held_per_rank(placement: Placement) -> NDArray[np.int64]:
    """[layers, ranks, experts] copies of each expert on each rank."""
    held = np.zeros((placement.num_layers, placement.num_ranks, placement.num_experts), np.int64)
    layers = np.arange(placement.num_layers)[:, None]
    ranks = np.arange(placement.num_slots) // placement.slots_per_rank
    np.add.at(held, (layers, ranks, placement.logical_of_physical), 1)
    return held
