"""Slots in which the drafter keeps its state between two steps of a sequence: one per running sequence."""

from __future__ import annotations

from thalweg.scheduler.reference.sequence import Sequence


class DraftSlots:
    """A stack of the slots 1..count; the slot given back last is handed out first. Slot 0 is padding."""

    def __init__(self, count: int) -> None:
        self._free = list(range(count, 0, -1))

    @property
    def num_free(self) -> int:
        return len(self._free)

    def free_ids(self) -> list[int]:
        """The free slots in the order in which they will be handed out."""
        return self._free[::-1]

    def take(self, sequence: Sequence) -> None:
        sequence.draft_slot = self._free.pop()

    def give_back(self, sequence: Sequence) -> None:
        """Does nothing for a sequence that has none: finishing and leaving running both come here."""
        if sequence.draft_slot:
            self._free.append(sequence.draft_slot)
            sequence.draft_slot = 0
