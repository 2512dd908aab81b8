"""What planners of expert placements reach on traffic they have not seen, against the reference, and what they take.

Each row plans on the first half of a seeded history and is scored on the second: the peak rank load over the mean one,
as a ratio to the plan of the reference, mean over seeds. `limit` is what `search` must reach with 40 layers and 1,000
steps to plan on (`topics`) or 100. Seconds are those of one core for all layers; memory is the most that the process,
with the history, has held.
"""

from __future__ import annotations

import resource
import statistics
import time
from dataclasses import dataclass

from eplb_traffic import history
from report import Row, arguments, publish

from thalweg.eplb import imbalance, plan, rank_loads

NUM_EXPERTS = 384
TOKENS_PER_RANK = 1296
"""A decode step of 60 sequences with 3.6 tokens each, 6 experts a token."""
SKEWS = (0.6, 1.0)
RANKS = (64, 16, 8)
TOPIC_LIMITS = {(64, 0.6): 0.96, (64, 1.0): 0.89, (16, 0.6): 0.99, (16, 1.0): 0.96, (8, 0.6): 0.997, (8, 1.0): 0.985}
LIMITS = {"stationary": 1.001, "walk": 1.0, "shift": 1.02}
STEPS = {"topics": 1000, "stationary": 100, "walk": 100, "shift": 100}


@dataclass(frozen=True)
class Score:
    """One plan of one history."""

    inside: float
    outside: float
    seconds: float


def measure(planner: str, kind: str, seed: int, num_layers: int, num_ranks: int, skew: float, num_steps: int) -> Score:
    shape = (2 * num_steps, num_layers, NUM_EXPERTS)
    counts = history(kind, seed, shape, TOKENS_PER_RANK * num_ranks, skew)
    past, future = counts[:num_steps], counts[num_steps:]
    start = time.thread_time()
    placement = plan(past, NUM_EXPERTS + num_ranks, num_ranks, planner=planner)
    seconds = time.thread_time() - start
    return Score(imbalance(rank_loads(past, placement)), imbalance(rank_loads(future, placement)), seconds)


def make_row(planner: str, kind: str, num_ranks: int, skew: float, ours: list[Score], theirs: list[Score]) -> Row:
    limit = TOPIC_LIMITS[num_ranks, skew] if kind == "topics" else LIMITS[kind]
    return {
        "traffic": kind,
        "ranks": num_ranks,
        "skew": skew,
        "planner": planner,
        "in sample": f"{statistics.mean(score.inside for score in ours):.4f}",
        "out of sample": f"{statistics.mean(score.outside for score in ours):.4f}",
        "ratio": f"{statistics.mean(a.outside / b.outside for a, b in zip(ours, theirs, strict=True)):.4f}",
        "limit": str(limit) if planner == "search" else "",
        "seconds": statistics.median(score.seconds for score in ours),
        "memory MB": resource.getrusage(resource.RUSAGE_SELF).ru_maxrss / 1024,
    }


def main() -> None:
    parser = arguments(__doc__ or "")
    parser.add_argument("--seeds", type=int, nargs="+", default=[2026, 1, 2, 3, 4])
    parser.add_argument("--layers", type=int, default=40)
    parser.add_argument("--kinds", nargs="+", choices=tuple(STEPS), default=list(STEPS))
    parser.add_argument("--ranks", type=int, nargs="+", choices=RANKS, default=list(RANKS))
    options = parser.parse_args()
    seeds, num_layers = ([1], 1) if options.smoke else (options.seeds, options.layers)
    rows = []
    for kind, num_ranks, skew in [(k, r, s) for k in options.kinds for r in options.ranks for s in SKEWS]:
        num_steps = 20 if options.smoke else STEPS[kind]
        scores = {
            planner: [measure(planner, kind, seed, num_layers, num_ranks, skew, num_steps) for seed in seeds]
            for planner in ("reference", "greedy", "search")
        }
        rows += [make_row(name, kind, num_ranks, skew, scores[name], scores["reference"]) for name in scores]
    publish(rows, options.json)


if __name__ == "__main__":
    main()
