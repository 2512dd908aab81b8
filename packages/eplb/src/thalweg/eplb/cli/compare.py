"""Plan on the first steps of a history with several planners, and score them on the rest."""

from __future__ import annotations

import argparse
import time

from thalweg.eplb.cli.layout import Layout, add_layout_arguments, read_layout
from thalweg.eplb.metrics import imbalance, moved_slots, rank_loads
from thalweg.eplb.planner import PLANNERS, plan
from thalweg.interfaces import ConfigError
from thalweg.interfaces.text_table import number_table


def add_arguments(parser: argparse.ArgumentParser) -> None:
    """Arguments of `thalweg-eplb compare`."""
    add_layout_arguments(parser)
    parser.add_argument("--plan-steps", type=int, metavar="N", help="steps to plan on; the rest score (half)")
    parser.add_argument("--planners", metavar="NAME,...", help="which (all)")


def run(arguments: argparse.Namespace) -> int:
    """Print one line per planner; moved slots are against the placement in use, the initial one without --current."""
    layout = read_layout(arguments)
    num_steps = len(layout.history)
    plan_steps = num_steps // 2 if arguments.plan_steps is None else arguments.plan_steps
    if not 0 < plan_steps < num_steps:
        raise ConfigError(f"{plan_steps} of {num_steps} steps to plan on; some must be left to score")
    names = sorted(PLANNERS) if arguments.planners is None else arguments.planners.split(",")
    header = ("", "imbalance, planned on", "scored on", "moved slots", "seconds")
    print(number_table(header, [_row(name, layout, plan_steps) for name in names]))
    return 0


def _row(name: str, layout: Layout, plan_steps: int) -> list[str]:
    past, future = layout.history[:plan_steps], layout.history[plan_steps:]
    started = time.process_time()
    placement = plan(past, layout.num_slots, layout.num_ranks, planner=name, current=layout.current)
    seconds = time.process_time() - started
    scores = [imbalance(rank_loads(part, placement)) for part in (past, future)]
    moved = moved_slots(layout.before, placement).sum()
    return [name, *(f"{score:.4f}" for score in scores), str(moved), f"{seconds:.2f}"]
