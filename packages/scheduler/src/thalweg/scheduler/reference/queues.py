"""The queue of sequences that wait for a prefill."""

from __future__ import annotations

from collections import deque
from collections.abc import Iterator

from thalweg.scheduler.reference.sequence import Sequence


class WaitingQueue:
    """Two groups, each first in first out: sequences that hold blocks go before those that hold none.

    A half-prefilled prompt must not stand behind a request that waits for the very blocks it holds. Under policy
    "reference" everybody stands in the second group.
    """

    def __init__(self, holders_first: bool) -> None:
        self._holders_first = holders_first
        self._holders: deque[Sequence] = deque()
        self._others: deque[Sequence] = deque()
        self.prompt_tokens = 0
        """Sum of the prompt lengths, kept up to date because thousands may wait."""

    def __len__(self) -> int:
        return len(self._holders) + len(self._others)

    def __iter__(self) -> Iterator[Sequence]:
        """In planning order."""
        yield from self._holders
        yield from self._others

    def holders(self) -> list[Sequence]:
        """Unfinished ones that hold blocks: half-prefilled, or being loaded."""
        group = self._holders if self._holders_first else self._others
        return [sequence for sequence in group if sequence.blocks and not sequence.is_finished]

    def head(self) -> Sequence | None:
        """The one to plan next, if its data is there. Holders whose data is under way hold nobody up."""
        if not self._holders_first:
            return self._others[0] if self._others else None
        ready = (sequence for sequence in self.holders() if sequence.is_schedulable)
        unfinished = (sequence for sequence in self._others if not sequence.is_finished)
        return next(ready, None) or next(unfinished, None)

    def append(self, sequence: Sequence) -> None:
        self._group_of(sequence).append(sequence)
        self.prompt_tokens += sequence.prompt_length

    def push_front(self, sequence: Sequence) -> None:
        """First of its group: an unfinished chunk, a fork, or a preempted sequence (which owns nothing by now)."""
        self._group_of(sequence).appendleft(sequence)
        self.prompt_tokens += sequence.prompt_length

    def take(self, sequence: Sequence) -> None:
        """Remove one that is planned or dropped."""
        group = self._holders if sequence in self._holders else self._others
        group.remove(sequence)
        self.prompt_tokens -= sequence.prompt_length

    def remove_finished(self) -> list[Sequence]:
        """Take out and return those that were aborted while they waited."""
        finished = [sequence for sequence in self if sequence.is_finished]
        if finished:
            self._holders = deque(sequence for sequence in self._holders if not sequence.is_finished)
            self._others = deque(sequence for sequence in self._others if not sequence.is_finished)
            self.prompt_tokens -= sum(sequence.prompt_length for sequence in finished)
        return finished

    def _group_of(self, sequence: Sequence) -> deque[Sequence]:
        return self._holders if self._holders_first and sequence.blocks else self._others
