"""Copies that a forked sequence needs before it can go on: its state slot, and the block its parent only half filled.

A plan lists the copies, the engine makes them before the forward. Until they are made their sources must keep what they
hold, so every source is pinned when the fork happens and let go with the release of the step after that plan.
"""

from __future__ import annotations

from dataclasses import dataclass

from thalweg.scheduler.reference.block_pool import BlockPool
from thalweg.scheduler.reference.sequence import Sequence

Copy = tuple[int, int]
"""Source and destination."""


@dataclass(frozen=True, slots=True)
class ForkCopies:
    """What one child copies."""

    state_slot: Copy
    block: Copy | None


class CopyList:
    """The copies that the next plan lists, and the sources that are still pinned for those listed before."""

    def __init__(self, blocks: BlockPool, state_slots: BlockPool) -> None:
        self._blocks = blocks
        self._state_slots = state_slots
        self._pending: dict[Sequence, ForkCopies] = {}
        self._listed: dict[int, list[ForkCopies]] = {}

    @property
    def has_pinned_sources(self) -> bool:
        return bool(self._pending or self._listed)

    def add(self, child: Sequence, copies: ForkCopies) -> None:
        self._state_slots.pin([copies.state_slot[0]])
        if copies.block:
            self._blocks.pin([copies.block[0]])
        self._pending[child] = copies

    def cancel(self, child: Sequence) -> None:
        """Forget the copies of a child that loses its memory, unless a plan listed them already."""
        if child in self._pending:
            self._unpin(self._pending.pop(child))

    def origin(self, sequence: Sequence) -> ForkCopies | None:
        """What a sequence is still to be copied from; a child of it copies from there too."""
        return self._pending.get(sequence)

    def list_for(self, step: int) -> list[ForkCopies]:
        """Everything pending, which this step's plan now lists."""
        copies = list(self._pending.values())
        if copies:
            self._listed[step] = copies
            self._pending = {}
        return copies

    def unpin(self, step: int) -> None:
        """The copies of this step's plan were made."""
        for copies in self._listed.pop(step, ()):
            self._unpin(copies)

    def _unpin(self, copies: ForkCopies) -> None:
        self._state_slots.release([copies.state_slot[0]])
        if copies.block:
            self._blocks.release([copies.block[0]])
