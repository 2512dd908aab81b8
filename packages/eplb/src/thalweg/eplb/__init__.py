"""Expert load balancing for any mixture-of-experts engine: counts, placements, and moving weights."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

from thalweg.eplb.__about__ import __version__
from thalweg.eplb.history import History
from thalweg.eplb.placement import Placement
from thalweg.eplb.slots import Workload, redundant_slots

if TYPE_CHECKING:
    from thalweg.eplb._core import build_info
    from thalweg.eplb.background import BackgroundPlanner, Channel
    from thalweg.eplb.copies import choose_copies, follow_split, prefer_local_copies
    from thalweg.eplb.files import read_history, read_placement, write_history, write_placement
    from thalweg.eplb.greedy import GreedyPlanner
    from thalweg.eplb.limit import limit_layers
    from thalweg.eplb.metrics import imbalance, imbalance_per_layer, moved_slots, rank_loads
    from thalweg.eplb.monitor import BalanceMonitor, BalanceReport
    from thalweg.eplb.planner import PLANNERS, Planner, plan
    from thalweg.eplb.reference import ReferencePlanner
    from thalweg.eplb.schedule import RearrangementSchedule, ScheduleConfig, StepActions
    from thalweg.eplb.search import SearchPlanner
    from thalweg.eplb.split import StepSplit, TokenSplit
    from thalweg.eplb.static import StaticPlanner
    from thalweg.eplb.transfer import LayerTransfers, LocalCopy, Transfer, keep_in_place, plan_transfers
    from thalweg.eplb.window import CountingWindow

__all__ = [
    "PLANNERS",
    "BackgroundPlanner",
    "BalanceMonitor",
    "BalanceReport",
    "Channel",
    "CountingWindow",
    "GreedyPlanner",
    "History",
    "LayerTransfers",
    "LocalCopy",
    "Placement",
    "Planner",
    "RearrangementSchedule",
    "ReferencePlanner",
    "ScheduleConfig",
    "SearchPlanner",
    "StaticPlanner",
    "StepActions",
    "StepSplit",
    "TokenSplit",
    "Transfer",
    "Workload",
    "__version__",
    "build_info",
    "choose_copies",
    "follow_split",
    "imbalance",
    "imbalance_per_layer",
    "keep_in_place",
    "limit_layers",
    "moved_slots",
    "plan",
    "plan_transfers",
    "prefer_local_copies",
    "rank_loads",
    "read_history",
    "read_placement",
    "redundant_slots",
    "write_history",
    "write_placement",
]

_LAZY = {
    "BackgroundPlanner": "background",
    "BalanceMonitor": "monitor",
    "BalanceReport": "monitor",
    "Channel": "background",
    "CountingWindow": "window",
    "GreedyPlanner": "greedy",
    "LayerTransfers": "transfer",
    "LocalCopy": "transfer",
    "PLANNERS": "planner",
    "Planner": "planner",
    "RearrangementSchedule": "schedule",
    "ReferencePlanner": "reference",
    "ScheduleConfig": "schedule",
    "SearchPlanner": "search",
    "StaticPlanner": "static",
    "StepActions": "schedule",
    "StepSplit": "split",
    "TokenSplit": "split",
    "Transfer": "transfer",
    "build_info": "_core",
    "choose_copies": "copies",
    "follow_split": "copies",
    "imbalance": "metrics",
    "imbalance_per_layer": "metrics",
    "keep_in_place": "transfer",
    "limit_layers": "limit",
    "moved_slots": "metrics",
    "plan": "planner",
    "plan_transfers": "transfer",
    "prefer_local_copies": "copies",
    "rank_loads": "metrics",
    "read_history": "files",
    "read_placement": "files",
    "write_history": "files",
    "write_placement": "files",
}


def __getattr__(name: str) -> Any:
    """Load a module when a name of it is first needed: the extension and torch are not for everybody."""
    if name not in _LAZY:
        raise AttributeError(f"module {__name__!r} has no attribute {name!r}")
    from importlib import import_module

    return getattr(import_module(f"{__name__}.{_LAZY[name]}"), name)
