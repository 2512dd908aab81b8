"""What splitting each step's tokens over the copies of experts gains over an even split, and what it takes.

The placement is the one that `search` plans on the first half of a seeded history; the second half is split, in whole
tokens. `imbalance`: the peak rank load over the mean one, sums over steps and layers. Microseconds are those of one
core for one layer of one step, median over steps: in one call for all layers, and in one call for each.
"""

from __future__ import annotations

import statistics
import time
from collections.abc import Callable

import numpy as np
from eplb_traffic import history
from numpy.typing import NDArray
from report import Row, arguments, publish

from thalweg.eplb import Placement, StepSplit, imbalance, plan

NUM_EXPERTS = 384
TOKENS_PER_RANK = 1296
"""A decode step of 60 sequences with 3.6 tokens each, 6 experts a token."""
NUM_STEPS = 100
KINDS = ("stationary", "topics", "walk", "shift")
SWEEPS = (0, 1, 2, 4, 8, 64)


def rank_loads(placement: Placement, shares: NDArray[np.int32]) -> NDArray[np.float64]:
    """[layers, ranks]"""
    by_rank = shares.reshape(placement.num_layers, placement.num_ranks, -1)
    return by_rank.sum(axis=2, dtype=np.float64)


def median_us(split: Callable[[NDArray[np.int32]], object], steps: NDArray[np.int32]) -> float:
    """For one layer of one step."""
    times = []
    for tokens in steps:
        begin = time.thread_time_ns()
        split(tokens)
        times.append((time.thread_time_ns() - begin) / 1000 / steps.shape[1])
    return statistics.median(times)


def make_row(kind: str, skew: float, placement: Placement, steps: NDArray[np.int32], sweeps: int) -> Row:
    split = StepSplit(placement, sweeps)

    def one_by_one(tokens: NDArray[np.int32]) -> None:
        for layer, row in enumerate(tokens):
            split.split_layer(layer, row)

    loads = np.stack([rank_loads(placement, split.split(tokens)) for tokens in steps])
    return {
        "ranks": placement.num_ranks,
        "traffic": kind,
        "skew": skew,
        "sweeps": sweeps or "even",
        "imbalance": f"{imbalance(loads):.4f}",
        "us": median_us(split.split, steps),
        "us, layer by layer": median_us(one_by_one, steps),
    }


def main() -> None:
    parser = arguments(__doc__ or "")
    parser.add_argument("--seed", type=int, default=2026)
    parser.add_argument("--layers", type=int, default=40)
    options = parser.parse_args()
    num_layers, num_steps = (2, 5) if options.smoke else (options.layers, NUM_STEPS)
    cases = (
        [(64, "topics", 0.6)] if options.smoke else [(r, k, s) for r in (64, 16, 8) for k in KINDS for s in (0.6, 1.0)]
    )
    rows = []
    for num_ranks, kind, skew in cases:
        shape = (2 * num_steps, num_layers, NUM_EXPERTS)
        counts = history(kind, options.seed, shape, TOKENS_PER_RANK * num_ranks, skew)
        placement = plan(counts[:num_steps], NUM_EXPERTS + num_ranks, num_ranks)
        rows += [make_row(kind, skew, placement, counts[num_steps:], sweeps) for sweeps in SWEEPS]
    publish(rows, options.json)


if __name__ == "__main__":
    main()
