"""Rounds of transfers in which no rank sends twice or receives twice."""

from __future__ import annotations

from collections import Counter
from collections.abc import Sequence


def conflict_free_rounds(pairs: Sequence[tuple[int, int]]) -> list[int]:
    """A round for each (sender, receiver), equal pairs included, as few rounds as possible.

    That is as many as the busiest sender or receiver has transfers: the edges of a bipartite multigraph can be coloured
    with as many colours as its largest degree (Koenig). Both sides compute the same rounds from the same pairs.
    """
    degrees = Counter((side, rank) for pair in pairs for side, rank in enumerate(pair))
    num_rounds = max(degrees.values(), default=0)
    taken: dict[tuple[int, int], list[int | None]] = {node: [None] * num_rounds for node in degrees}
    rounds = [0] * len(pairs)
    for index, (sender, receiver) in enumerate(pairs):
        source, target = taken[0, sender], taken[1, receiver]
        ours, theirs = source.index(None), target.index(None)
        if target[ours] is not None:
            _swap_along(pairs, rounds, taken, (1, receiver), ours, theirs)
        rounds[index] = ours
        source[ours] = target[ours] = index
    return rounds


def _swap_along(
    pairs: Sequence[tuple[int, int]],
    rounds: list[int],
    taken: dict[tuple[int, int], list[int | None]],
    start: tuple[int, int],
    busy: int,
    free: int,
) -> None:
    """Free the round `busy` at `start` by exchanging it with `free` along the path that alternates between the two.

    The path never comes to the sender of the pair being placed: it would arrive there by a transfer in `busy`, which
    is free at that sender.
    """
    path = []
    node, number = start, busy
    while (index := taken[node][number]) is not None:
        path.append(index)
        other = 1 - node[0]
        node, number = (other, pairs[index][other]), busy + free - number
    for index in path:
        for side, rank in enumerate(pairs[index]):
            taken[side, rank][rounds[index]] = None
    for index in path:
        rounds[index] = busy + free - rounds[index]
    for index in path:
        for side, rank in enumerate(pairs[index]):
            taken[side, rank][rounds[index]] = index
