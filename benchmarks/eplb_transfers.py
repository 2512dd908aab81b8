"""What going from one placement to another takes: experts sent, rounds, and planning them.

Traffic is `topics` of skew 1.0. `initial`: from where experts are before anything was counted to the plan of `search`
on the first half of a seeded history; `fresh`: from that to one planned on the second half alone; `search`: the same,
planned from where experts are. In a round a rank sends and receives one expert at most. `least rounds`: what the
busiest receiver needs, so no plan has fewer. `dealt`: rounds if senders are chosen in order; `rounds`: if they share
the work. All are means over layers; milliseconds are those of one core for a layer.
"""

from __future__ import annotations

import statistics
import time
from collections import Counter
from collections.abc import Iterator

from eplb_traffic import history
from report import Row, arguments, publish

from thalweg.eplb import LayerTransfers, Placement, SearchPlanner, moved_slots, plan, plan_transfers
from thalweg.eplb.senders import Pairing, balance_senders, deal_senders

NUM_EXPERTS = 384
NUM_STEPS = 250
TOKENS_PER_RANK = 1296
LAYOUTS = {64: (1, 4), 16: (1, 4), 8: (1, 4)}
"""Redundant slots per rank, by ranks: of decode and of prefill."""


def moves(
    num_ranks: int, num_slots: int, num_layers: int, num_steps: int
) -> Iterator[tuple[str, Placement, Placement]]:
    counts = history("topics", 2026, (2 * num_steps, num_layers, NUM_EXPERTS), TOKENS_PER_RANK * num_ranks, 1.0)
    past, now = counts[:num_steps], counts[num_steps:]
    initial = Placement.initial(num_layers, NUM_EXPERTS, num_slots, num_ranks)
    planned = plan(past, num_slots, num_ranks)
    yield "initial", initial, planned
    yield "fresh", planned, plan(now, num_slots, num_ranks)
    yield "search", planned, plan(now, num_slots, num_ranks, planner=SearchPlanner(min_gain=0.0), current=planned)


def transfers(old: Placement, new: Placement, pairing: Pairing) -> list[LayerTransfers]:
    layers = zip(old.logical_of_physical, new.logical_of_physical, strict=True)
    return [plan_transfers(before, after, old.num_ranks, pairing) for before, after in layers]


def busiest_receiver(layer: LayerTransfers) -> int:
    return max(Counter(move.receiver for moves in layer.rounds for move in moves).values(), default=0)


def make_row(name: str, redundant: int, old: Placement, new: Placement) -> Row:
    begin = time.thread_time()
    layers = transfers(old, new, balance_senders)
    milliseconds = 1000 * (time.thread_time() - begin) / len(layers)
    return {
        "ranks": old.num_ranks,
        "redundant slots a rank": redundant,
        "to": name,
        "moved slots": float(moved_slots(old, new).mean()),
        "of": old.num_slots,
        "transfers": statistics.mean(layer.num_transfers for layer in layers),
        "least rounds": statistics.mean(busiest_receiver(layer) for layer in layers),
        "dealt": statistics.mean(len(layer.rounds) for layer in transfers(old, new, deal_senders)),
        "rounds": statistics.mean(len(layer.rounds) for layer in layers),
        "ms to plan": milliseconds,
    }


def main() -> None:
    parser = arguments(__doc__ or "")
    parser.add_argument("--layers", type=int, default=40)
    options = parser.parse_args()
    num_layers, num_steps = (1, 10) if options.smoke else (options.layers, NUM_STEPS)
    rows = []
    for num_ranks, per_rank in list(LAYOUTS.items())[-1 if options.smoke else None :]:
        for redundant in per_rank:
            placements = moves(num_ranks, NUM_EXPERTS + redundant * num_ranks, num_layers, num_steps)
            rows += [make_row(name, redundant, old, new) for name, old, new in placements]
    publish(rows, options.json)


if __name__ == "__main__":
    main()
