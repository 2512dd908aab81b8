"""One interface for every planner, and the planners by name."""

from __future__ import annotations

from collections.abc import Callable
from typing import TYPE_CHECKING, Protocol

from thalweg.eplb.greedy import GreedyPlanner
from thalweg.eplb.history import check_history
from thalweg.eplb.placement import Placement, check_placement
from thalweg.eplb.reference import ReferencePlanner
from thalweg.eplb.search import SearchPlanner
from thalweg.eplb.slots import check_shape
from thalweg.eplb.static import StaticPlanner
from thalweg.interfaces import ConfigError, shown

if TYPE_CHECKING:
    from thalweg.eplb.history import History


class Planner(Protocol):
    """Places expert copies for all layers of a layout; deterministic, and called with checked arguments."""

    def plan(self, history: History, num_slots: int, num_ranks: int, current: Placement | None) -> Placement:
        """A placement of `num_slots` slots on `num_ranks` ranks, for loads as in the history.

        history: [steps, layers, experts], non-empty, finite, >= 0.
        current: where the experts are now, of the same shape as the result; None: nowhere yet.
        """
        ...


PLANNERS: dict[str, Callable[[], Planner]] = {
    "greedy": GreedyPlanner,
    "reference": ReferencePlanner,
    "search": SearchPlanner,
    "static": StaticPlanner,
}
"""The planners by name, each made with its defaults."""

DEFAULT_PLANNER = "search"


def plan(
    history: History,
    num_slots: int,
    num_ranks: int,
    *,
    planner: Planner | str = DEFAULT_PLANNER,
    current: Placement | None = None,
) -> Placement:
    """Place expert copies on ranks.

    history: [steps, layers, experts] tokens routed to each logical expert, integers or floats.
    num_slots: physical slots over all ranks, a multiple of num_ranks, at least the number of experts.
    planner: a planner or the name of one.
    current: the placement in use; planners that weigh moved weights start from it.
    Raises ConfigError for counts, shapes and names that make no sense.
    """
    history = check_history(history)
    _, num_layers, num_experts = history.shape
    check_shape(num_experts, num_slots, num_ranks)
    if current is not None:
        _check_current(current, num_layers, num_experts, num_slots, num_ranks)
    if isinstance(planner, str):
        if planner not in PLANNERS:
            raise ConfigError(f"planner is {planner!r}; it must be one of {', '.join(sorted(PLANNERS))}")
        planner = PLANNERS[planner]()
    elif isinstance(planner, type) or not hasattr(planner, "plan"):
        raise ConfigError(f"planner is {shown(planner)}; it must be a Planner or the name of one")
    return planner.plan(history, num_slots, num_ranks, current)


def _check_current(current: Placement, num_layers: int, num_experts: int, num_slots: int, num_ranks: int) -> None:
    check_placement("current", current)
    found = (current.num_layers, current.num_experts, current.num_slots, current.num_ranks)
    wanted = (num_layers, num_experts, num_slots, num_ranks)
    if found != wanted:
        raise ConfigError(f"current has (layers, experts, slots, ranks) {found}; asked for is {wanted}")
