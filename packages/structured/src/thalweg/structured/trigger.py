"""The free text before a grammar: when it ends, and how it is made to end."""

from __future__ import annotations

from collections import deque
from collections.abc import Sequence


class Trigger:
    """How much of a token sequence the output ends with: the automaton of Knuth, Morris and Pratt.

    token_ids: at least one. Once they are complete they stay so. From the bound token on they are forced: nothing else
    is allowed.
    """

    def __init__(self, token_ids: Sequence[int], bound_token_id: int | None) -> None:
        self.token_ids = tuple(token_ids)
        self.bound_token_id = bound_token_id
        self._shorter = _prefix_lengths(self.token_ids)

    def advance(self, progress: int, token_id: int) -> int:
        """Tokens of the sequence seen after one more token, `progress` < all of them before it."""
        while progress and self.token_ids[progress] != token_id:
            progress = self._shorter[progress - 1]
        return progress + (self.token_ids[progress] == token_id)


def _prefix_lengths(token_ids: tuple[int, ...]) -> list[int]:
    """For each prefix the length of its longest proper prefix that is also its end."""
    lengths = [0] * len(token_ids)
    for end in range(1, len(token_ids)):
        length = lengths[end - 1]
        while length and token_ids[length] != token_ids[end]:
            length = lengths[length - 1]
        lengths[end] = length + (token_ids[length] == token_ids[end])
    return lengths


class TriggerWatch:
    """One output's way to its trigger, and back.

    max_rollback: tokens that can be taken back, those that the grammar took included.
    """

    __slots__ = ("_history", "progress", "tokens_after_bound", "trigger")

    def __init__(self, trigger: Trigger, max_rollback: int) -> None:
        self.trigger = trigger
        self.progress = 0
        """Tokens of the trigger seen."""
        self.tokens_after_bound = -1
        """-1 before the bound token."""
        self._history: deque[int] = deque(maxlen=max_rollback)

    @property
    def is_pending(self) -> bool:
        """Whether the grammar has yet to begin."""
        return self.progress < len(self.trigger.token_ids)

    @property
    def forced_token_id(self) -> int | None:
        """The one token allowed next; None where the text is free and once the grammar has begun."""
        return self.trigger.token_ids[self.progress] if self.is_pending and self.tokens_after_bound >= 0 else None

    @property
    def num_kept(self) -> int:
        """Tokens that can be taken back now."""
        return len(self._history)

    def accept(self, token_id: int) -> bool:
        """One more token while the trigger is pending; False, and no change, if another one is forced."""
        forced = self.forced_token_id
        if forced is not None and token_id != forced:
            return False
        progress = self.trigger.advance(self.progress, token_id)
        self.count()
        self.progress = progress
        if forced is None and token_id == self.trigger.bound_token_id:
            self.tokens_after_bound = 0
        return True

    def count(self) -> None:
        """One more token, taken by the grammar."""
        self._history.append(self.progress)
        if self.tokens_after_bound >= 0:
            self.tokens_after_bound += 1

    def rollback(self, num_tokens: int) -> None:
        """Take back the last tokens, at most `num_kept`."""
        for _ in range(num_tokens):
            self.progress = self._history.pop()
        if self.tokens_after_bound >= 0:
            self.tokens_after_bound = max(self.tokens_after_bound - num_tokens, -1)
