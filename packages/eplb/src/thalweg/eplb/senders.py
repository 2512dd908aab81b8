"""Which of the ranks that hold an expert sends it to a rank that needs it."""

from __future__ import annotations

from collections import deque
from collections.abc import Callable, Sequence
from typing import NamedTuple, TypeAlias


class Need(NamedTuple):
    """Ranks that must receive an expert, and those that can send it; both ascending, no rank in both."""

    holders: Sequence[int]
    receivers: Sequence[int]


Pairing: TypeAlias = Callable[[Sequence[Need]], list[list[int]]]
"""From the needs of a layer to the sender for each receiver of each need; every rank must come to the same result."""


def balance_senders(needs: Sequence[Need]) -> list[list[int]]:
    """Senders such that the busiest one has as few experts to send as possible.

    A rank that receives more than that sets the number of rounds by itself; the senders are left as they are then.
    """
    senders = [[need.holders[0]] * len(need.receivers) for need in needs]
    load = dict.fromkeys((rank for need in needs for rank in need.holders), 0)
    for index in sorted(range(len(needs)), key=lambda index: len(needs[index].holders)):  # those without a choice first
        for place in range(len(senders[index])):
            sender = min(needs[index].holders, key=lambda rank: (load[rank], rank))
            senders[index][place] = sender
            load[sender] += 1
    enough = max(_num_received(needs).values(), default=0)
    while max(load.values(), default=0) > enough:
        path = _relieving_path(needs, senders, load)
        if not path:
            break
        for index, place, sender in path:
            load[senders[index][place]] -= 1
            senders[index][place] = sender
            load[sender] += 1
    return senders


def deal_senders(needs: Sequence[Need]) -> list[list[int]]:
    """Senders as DeepInfer 0.1.0 chooses them: each expert's receivers are dealt to its holders in order."""
    return [
        [need.holders[index] for index in deal(len(need.holders), len(need.receivers))] if need.receivers else []
        for need in needs
    ]


def deal(num_senders: int, num_receivers: int) -> list[int]:
    """Which sender serves each receiver: equal runs of receivers, the rest one each from the first sender on."""
    run = num_receivers // num_senders
    full = run * num_senders
    return [receiver // run if receiver < full else receiver - full for receiver in range(num_receivers)]


def _num_received(needs: Sequence[Need]) -> dict[int, int]:
    received: dict[int, int] = {}
    for need in needs:
        for rank in need.receivers:
            received[rank] = received.get(rank, 0) + 1
    return received


def _relieving_path(
    needs: Sequence[Need], senders: Sequence[Sequence[int]], load: dict[int, int]
) -> list[tuple[int, int, int]]:
    """(need, place, new sender) by which one of the busiest ranks sends one expert less, and none becomes as busy.

    Each of them hands one expert to the next rank, which hands on another one, until a rank has room. Empty: there is
    no such path from any of the busiest, and then no other choice of senders is better (Hakimi).
    """
    most = max(load.values())
    sends: dict[int, list[tuple[int, int]]] = {rank: [] for rank in load}
    for index, chosen in enumerate(senders):
        for place, rank in enumerate(chosen):
            sends[rank].append((index, place))
    busiest = sorted(rank for rank in load if load[rank] == most)
    came_by: dict[int, tuple[int, int, int] | None] = dict.fromkeys(busiest)
    waiting = deque(busiest)
    while waiting:
        rank = waiting.popleft()
        for index, place in sends[rank]:
            for other in needs[index].holders:
                if other in came_by:
                    continue
                came_by[other] = (index, place, other)
                if load[other] <= most - 2:
                    return _path_to(other, came_by, senders)
                waiting.append(other)
    return []


def _path_to(
    rank: int, came_by: dict[int, tuple[int, int, int] | None], senders: Sequence[Sequence[int]]
) -> list[tuple[int, int, int]]:
    path = []
    while (step := came_by[rank]) is not None:
        path.append(step)
        index, place, _ = step
        rank = senders[index][place]
    return path
