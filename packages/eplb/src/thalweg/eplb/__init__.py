"""Expert load balancing for any mixture-of-experts engine: counts, placements, and moving weights."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

from thalweg.eplb.__about__ import __version__
from thalweg.eplb.history import History
from thalweg.eplb.placement import Placement
from thalweg.eplb.slots import Workload, redundant_slots

if TYPE_CHECKING:
    from thalweg.eplb._core import build_info
    from thalweg.eplb.greedy import GreedyPlanner
    from thalweg.eplb.metrics import imbalance, moved_slots, rank_loads
    from thalweg.eplb.planner import PLANNERS, Planner, plan
    from thalweg.eplb.reference import ReferencePlanner
    from thalweg.eplb.static import StaticPlanner

__all__ = [
    "PLANNERS",
    "GreedyPlanner",
    "History",
    "Placement",
    "Planner",
    "ReferencePlanner",
    "StaticPlanner",
    "Workload",
    "__version__",
    "build_info",
    "imbalance",
    "moved_slots",
    "plan",
    "rank_loads",
    "redundant_slots",
]

_LAZY = {
    "PLANNERS": "planner",
    "GreedyPlanner": "greedy",
    "Planner": "planner",
    "ReferencePlanner": "reference",
    "StaticPlanner": "static",
    "build_info": "_core",
    "imbalance": "metrics",
    "moved_slots": "metrics",
    "plan": "planner",
    "rank_loads": "metrics",
}


def __getattr__(name: str) -> Any:
    """Load a module when a name of it is first needed: the extension and torch are not for everybody."""
    if name not in _LAZY:
        raise AttributeError(f"module {__name__!r} has no attribute {name!r}")
    from importlib import import_module

    return getattr(import_module(f"{__name__}.{_LAZY[name]}"), name)
