"""A matcher that keeps nothing but its tokens: every answer is found by feeding them again to a new one."""

from __future__ import annotations

from collections.abc import Sequence

import numpy as np
from numpy.typing import NDArray

from thalweg.structured.library import CompiledGrammar, GrammarMatcher


class ReplayMatcher:
    """Slow, and plainly right. vocab_size and end_token_id are those of the grammar's vocabulary."""

    def __init__(
        self,
        compiled: CompiledGrammar,
        trigger: Sequence[int],
        bound: int | None,
        *,
        vocab_size: int,
        end_token_id: int,
    ) -> None:
        self.compiled, self.trigger, self.bound = compiled, list(trigger), bound
        self.vocab_size, self.end_token_id = vocab_size, end_token_id
        self.tokens: list[int] = []

    def fresh(self) -> ReplayMatcher:
        return ReplayMatcher(
            self.compiled, self.trigger, self.bound, vocab_size=self.vocab_size, end_token_id=self.end_token_id
        )

    @property
    def num_free(self) -> int:
        """Tokens up to the end of the trigger, or all of them."""
        size = len(self.trigger)
        for end in range(size, len(self.tokens) + 1):
            if self.tokens[end - size : end] == self.trigger:
                return end
        return len(self.tokens)

    @property
    def trigger_progress(self) -> int:
        """The longest beginning of the trigger that the free text ends with."""
        free = self.tokens[: self.num_free]
        return max(
            n for n in range(len(self.trigger) + 1) if n <= len(free) and free[len(free) - n :] == self.trigger[:n]
        )

    @property
    def is_pending(self) -> bool:
        return self.trigger_progress < len(self.trigger)

    @property
    def tokens_after_end(self) -> int:
        if self.is_pending:
            return -1
        written = self.tokens[self.num_free :]
        return len(written) - written.index(self.end_token_id) - 1 if self.end_token_id in written else -1

    @property
    def tokens_after_bound(self) -> int:
        free = self.tokens[: self.num_free]
        if self.bound is None or not self.trigger or self.bound not in free:
            return -1
        return len(self.tokens) - max(self.tokens_after_end, 0) - free.index(self.bound) - 1

    @property
    def is_finished(self) -> bool:
        return self.tokens_after_end >= 0

    @property
    def is_constrained(self) -> bool:
        return not self.is_finished and (self.tokens_after_bound >= 0 or not self.is_pending)

    def accept(self, token_id: int) -> bool:
        if not 0 <= token_id < self.vocab_size:
            return False
        if self.is_constrained and self.is_pending and token_id != self.trigger[self.trigger_progress]:
            return False
        if not self.is_pending and not self.is_finished and not self.grammar().accept_token(token_id):
            return False
        self.tokens.append(token_id)
        return True

    def rollback(self, num_tokens: int) -> None:
        self.tokens = self.tokens[: len(self.tokens) - num_tokens]

    def fill_bitmask(self, bitmask: NDArray[np.int32], row: int) -> None:
        if not self.is_constrained:
            bitmask[row] = -1
        elif self.is_pending:
            forced = self.trigger[self.trigger_progress]
            bitmask[row] = 0
            bitmask[row, forced // 32] = np.uint32(1 << forced % 32).astype(np.int32)
        else:
            self.grammar().fill_next_token_bitmask(bitmask, row)

    def grammar(self) -> GrammarMatcher:
        matcher = GrammarMatcher(self.compiled)
        assert all(matcher.accept_token(token_id) for token_id in self.tokens[self.num_free :])
        return matcher
