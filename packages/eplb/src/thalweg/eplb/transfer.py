"""What has to be moved, and from where, to go from one placement of a layer to another."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any, NamedTuple

import numpy as np
from numpy.typing import NDArray

from thalweg.eplb._checks import require_integer, require_integers
from thalweg.eplb.rounds import conflict_free_rounds
from thalweg.eplb.senders import Need, Pairing, balance_senders
from thalweg.interfaces import ConfigError


class LocalCopy(NamedTuple):
    """An expert goes from one slot of a rank to another of the same rank; slots are local."""

    source: int
    target: int


class Transfer(NamedTuple):
    """An expert goes from one rank to another; slots are local."""

    expert: int
    sender: int
    sender_slot: int
    receiver: int
    receiver_slot: int


@dataclass(frozen=True, slots=True)
class LayerTransfers:
    """All moves of one layer. Every source is the content before the first move, `duplicates` excepted."""

    slots_per_rank: int
    local_copies: tuple[tuple[LocalCopy, ...], ...]
    """Per rank: from its old slots."""
    rounds: tuple[tuple[Transfer, ...], ...]
    """One after another; in each of them a rank sends at most once and receives at most once."""
    duplicates: tuple[tuple[LocalCopy, ...], ...]
    """Per rank: from slots just received to others that need the same expert."""

    @property
    def num_transfers(self) -> int:
        """Experts that cross between ranks: the fewest possible, every rank receives an expert once or not at all."""
        return sum(map(len, self.rounds))

    def changed_slots(self, rank: int) -> list[int]:
        """The rank's local slots that get another content, ascending."""
        copied = [copy.target for copy in (*self.local_copies[rank], *self.duplicates[rank])]
        received = [move.receiver_slot for moves in self.rounds for move in moves if move.receiver == rank]
        return sorted(copied + received)


def plan_transfers(
    old: NDArray[Any], new: NDArray[Any], num_ranks: int, pairing: Pairing = balance_senders
) -> LayerTransfers:
    """The moves from one placement of a layer to another; the same on every rank.

    old, new: [slots] logical expert in each slot; rank r has slots r * slots / ranks onwards. pairing: chooses who
    sends where several ranks hold an expert. Raises ConfigError for what are no arrays of integers >= 0, when the
    shapes differ, ranks do not divide the slots, or `new` has an expert that `old` lacks.
    """
    _check_slots(old, new, num_ranks)
    old_rows, new_rows = (np.reshape(slots, (num_ranks, -1)).tolist() for slots in (old, new))
    held: dict[int, dict[int, int]] = {}  # expert -> rank -> its first slot
    for rank, row in enumerate(old_rows):
        for slot, expert in enumerate(row):
            held.setdefault(expert, {}).setdefault(rank, slot)
    needed: dict[int, list[tuple[int, int]]] = {}  # expert -> (rank, first slot) that receive it
    duplicates = []
    for rank, (old_row, new_row) in enumerate(zip(old_rows, new_rows, strict=True)):
        first: dict[int, int] = {}
        for slot, expert in enumerate(new_row):
            if expert not in old_row and first.setdefault(expert, slot) == slot:
                needed.setdefault(expert, []).append((rank, slot))
        again = [(first[expert], slot) for slot, expert in enumerate(new_row) if first.get(expert, slot) != slot]
        duplicates.append(tuple(LocalCopy(*copy) for copy in again))
    if not needed.keys() <= held.keys():
        raise ConfigError(f"the new placement has experts {sorted(needed.keys() - held.keys())}, which nobody holds")
    return LayerTransfers(
        slots_per_rank=len(old) // num_ranks,
        local_copies=tuple(map(_local_copies, old_rows, new_rows)),
        rounds=_in_rounds(_transfers(held, needed, pairing)),
        duplicates=tuple(duplicates),
    )


def keep_in_place(old: NDArray[Any], new: NDArray[Any], num_ranks: int) -> NDArray[np.int32]:
    """`new` with the slots of each rank in another order, so that experts which stay on a rank stay in their slots.

    old, new: [slots] logical expert in each slot of one layer. Raises ConfigError for what are no arrays of integers
    >= 0, when the shapes differ or ranks do not divide the slots.
    """
    _check_slots(old, new, num_ranks)
    old_rows, new_rows = (slots.reshape(num_ranks, -1).tolist() for slots in (old, new))
    rows = [_kept_row(old_row, new_row) for old_row, new_row in zip(old_rows, new_rows, strict=True)]
    return np.array(rows, np.int32).reshape(-1)


def _check_slots(old: NDArray[Any], new: NDArray[Any], num_ranks: int) -> None:
    require_integers("old", old)
    require_integers("new", new)
    if old.ndim != 1 or old.shape != new.shape:
        raise ConfigError(f"old is {old.shape} and new {new.shape}; both must be [slots]")
    require_integer("num_ranks", num_ranks, 1)
    if len(old) % num_ranks:
        raise ConfigError(f"{len(old)} slots do not divide over {num_ranks} ranks")


def _kept_row(old_row: Sequence[int], new_row: Sequence[int]) -> list[int]:
    coming = list(new_row)
    row: list[int | None] = []
    for expert in old_row:
        stays = expert in coming
        row.append(expert if stays else None)
        if stays:
            coming.remove(expert)
    rest = iter(coming)
    return [next(rest) if expert is None else expert for expert in row]


def _local_copies(old_row: Sequence[int], new_row: Sequence[int]) -> tuple[LocalCopy, ...]:
    """For each changed slot whose expert the rank holds already: from the first old slot that has it."""
    copies = [
        LocalCopy(old_row.index(expert), slot)
        for slot, expert in enumerate(new_row)
        if expert != old_row[slot] and expert in old_row
    ]
    return tuple(sorted(copies))


def _transfers(
    held: dict[int, dict[int, int]], needed: dict[int, list[tuple[int, int]]], pairing: Pairing
) -> list[Transfer]:
    """One for each expert and rank in need; experts ascending."""
    experts = sorted(needed)
    needs = [Need(list(held[expert]), [rank for rank, _ in needed[expert]]) for expert in experts]
    return [
        Transfer(expert, sender, held[expert][sender], receiver, slot)
        for expert, senders in zip(experts, pairing(needs), strict=True)
        for sender, (receiver, slot) in zip(senders, needed[expert], strict=True)
    ]


def _in_rounds(moves: Sequence[Transfer]) -> tuple[tuple[Transfer, ...], ...]:
    numbers = conflict_free_rounds([(move.sender, move.receiver) for move in moves])
    rounds: list[list[Transfer]] = [[] for _ in range(max(numbers, default=-1) + 1)]
    for move, number in zip(moves, numbers, strict=True):
        rounds[number].append(move)
    return tuple(map(tuple, rounds))
