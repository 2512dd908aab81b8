"""The queue of sequences that wait for a prefill."""

from __future__ import annotations

from collections import deque
from collections.abc import Iterator

from thalweg.scheduler.reference.sequence import Sequence


class WaitingQueue:
    """Two groups, each first in first out: sequences that hold blocks (half-prefilled) go before those that hold none.

    A half-prefilled prompt must not stand behind a request that waits for the very blocks it holds. Under policy
    "reference" everybody stands in the second group.
    """

    def __init__(self, holders_first: bool) -> None:
        self._holders_first = holders_first
        self._holders: deque[Sequence] = deque()
        self._others: deque[Sequence] = deque()

    def __len__(self) -> int:
        return len(self._holders) + len(self._others)

    def __iter__(self) -> Iterator[Sequence]:
        """In planning order."""
        yield from self._holders
        yield from self._others

    def head(self) -> Sequence | None:
        """The one to plan next."""
        return next(iter(self), None)

    def pop(self) -> Sequence:
        return (self._holders or self._others).popleft()

    def append(self, sequence: Sequence) -> None:
        self._group_of(sequence).append(sequence)

    def push_front(self, sequence: Sequence) -> None:
        """First of its group: an unfinished chunk, or a preempted sequence (which owns nothing by now)."""
        self._group_of(sequence).appendleft(sequence)

    def remove_finished(self) -> list[Sequence]:
        """Take out and return those that were aborted while they waited."""
        finished = [sequence for sequence in self if sequence.is_finished]
        if finished:
            self._holders = deque(sequence for sequence in self._holders if not sequence.is_finished)
            self._others = deque(sequence for sequence in self._others if not sequence.is_finished)
        return finished

    def _group_of(self, sequence: Sequence) -> deque[Sequence]:
        return self._holders if self._holders_first and sequence.blocks else self._others
