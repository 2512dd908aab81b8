"""Plan a placement from a saved history, and say what it improves and moves."""

from __future__ import annotations

import argparse
import time

from thalweg.eplb.cli.layout import add_layout_arguments, check_output, read_layout
from thalweg.eplb.files import write_placement
from thalweg.eplb.metrics import imbalance, imbalance_per_layer, moved_slots, rank_loads
from thalweg.eplb.planner import DEFAULT_PLANNER, PLANNERS, plan
from thalweg.interfaces.text_table import number_table


def add_arguments(parser: argparse.ArgumentParser) -> None:
    """Arguments of `thalweg-eplb plan`."""
    add_layout_arguments(parser)
    parser.add_argument("--planner", choices=sorted(PLANNERS), default=DEFAULT_PLANNER, help="(%(default)s)")
    parser.add_argument("--output", metavar="FILE", help="npz to write the placement to")


def run(arguments: argparse.Namespace) -> int:
    """Print imbalance and moved slots of every layer; write the placement where asked."""
    if arguments.output is not None:
        check_output(arguments.output)
    layout = read_layout(arguments)
    history, before = layout.history, layout.before
    started = time.process_time()
    after = plan(history, layout.num_slots, layout.num_ranks, planner=arguments.planner, current=layout.current)
    seconds = time.process_time() - started
    old, new = rank_loads(history, before), rank_loads(history, after)
    per_layer = (imbalance_per_layer(old), imbalance_per_layer(new), moved_slots(before, after))
    rows = [
        [str(layer), f"{was:.4f}", f"{becomes:.4f}", str(moved)]
        for layer, (was, becomes, moved) in enumerate(zip(*per_layer, strict=True))
    ]
    total = ["all", f"{imbalance(old):.4f}", f"{imbalance(new):.4f}", str(per_layer[2].sum())]
    print(number_table(("layer", "imbalance", "after", "moved slots"), [*rows, total]))
    shape = f"{history.shape[2]} experts in {layout.num_slots} slots of {layout.num_ranks} ranks"
    print(f"{shape}; {arguments.planner}, {seconds:.2f} s of one core")
    if arguments.output is not None:
        write_placement(arguments.output, after)
    return 0
