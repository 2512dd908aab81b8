"""Use the expert balancer alone, around any mixture-of-experts engine: count, plan, see what has to move. Needs numpy.

Install with `pip install thalweg-eplb`.
"""

import numpy as np

from thalweg.eplb import CountingWindow, Placement, imbalance, plan, plan_transfers, rank_loads

RANKS, EXPERTS, SLOTS, LAYERS = 4, 16, 20, 2
rng = np.random.default_rng(0)
popularity = rng.dirichlet(np.full(EXPERTS, 0.5), LAYERS)


def route(num_tokens: int) -> np.ndarray:
    """[layers, experts] tokens of one step: what a gate would choose."""
    return rng.multinomial(num_tokens, popularity)


def main() -> None:
    placement = Placement.initial(LAYERS, EXPERTS, SLOTS, RANKS)
    window = CountingWindow(50, LAYERS, EXPERTS)
    for _ in range(50):
        # One window for all ranks here; in an engine each rank has one, and their sum is the history.
        held = placement.logical_of_physical
        tokens = np.take_along_axis(route(4096) // placement.copies(), held.astype(np.int64), axis=1)
        window.record(tokens, held)
    history = window.history()
    planned = plan(history, SLOTS, RANKS, current=placement)
    for layer in range(LAYERS):
        moves = plan_transfers(placement.logical_of_physical[layer], planned.logical_of_physical[layer], RANKS)
        print(f"layer {layer}: {moves.num_transfers} experts move between ranks, in {len(moves.rounds)} rounds")
    future = np.stack([route(4096) for _ in range(50)])
    print(f"imbalance {imbalance(rank_loads(future, placement)):.2f} -> {imbalance(rank_loads(future, planned)):.2f}")


if __name__ == "__main__":
    main()
