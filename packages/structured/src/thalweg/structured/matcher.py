"""Follows one output through its grammar, from free text to what comes after the end token."""

from __future__ import annotations

from collections.abc import Sequence
from typing import TYPE_CHECKING

import numpy as np
from numpy.typing import NDArray

from thalweg.interfaces import RequestError, shown
from thalweg.structured.bitmask import num_words
from thalweg.structured.trigger import Trigger, TriggerWatch

if TYPE_CHECKING:
    from thalweg.structured.library import CompiledGrammar

MAX_ROLLBACK = 64


class GrammarMatcher:
    """A matcher at its beginning; satisfies `thalweg.interfaces.Matcher`.

    trigger_token_ids: the grammar starts after this sequence; empty: at once.
    bound_token_id: from this token on the trigger is forced; needs a trigger.
    max_rollback: tokens that can be taken back where there is a trigger; without one, all can.
    Raises RequestError for a bound without a trigger, and for ids that the vocabulary does not have.
    Not for several threads at a time; matchers of one compiled grammar are independent.
    """

    __slots__ = (
        "__weakref__",
        "_compiled",
        "_max_rollback",
        "_num_in_grammar",
        "_tokens_after_end",
        "_watch",
        "end_token_id",
        "grammar",
        "vocab_size",
    )

    def __init__(
        self,
        compiled: CompiledGrammar,
        trigger_token_ids: Sequence[int] = (),
        bound_token_id: int | None = None,
        *,
        max_rollback: int = MAX_ROLLBACK,
    ) -> None:
        info = compiled.tokenizer_info
        trigger = _trigger_of(trigger_token_ids, bound_token_id, info.vocab_size)
        self._begin(compiled, info.vocab_size, info.stop_token_ids[0], trigger, max_rollback)

    def _begin(
        self,
        compiled: CompiledGrammar,
        vocab_size: int,
        end_token_id: int,
        trigger: Trigger | None,
        max_rollback: int,
    ) -> None:
        from thalweg.structured import library  # whoever has a compiled grammar has loaded it

        self._compiled = compiled
        self.vocab_size = vocab_size
        self.end_token_id = end_token_id
        self._max_rollback = max_rollback
        self._watch = TriggerWatch(trigger, max_rollback) if trigger is not None else None
        self._num_in_grammar = 0
        """Tokens that the grammar has taken, the end token included."""
        self._tokens_after_end = -1
        self.grammar = library.GrammarMatcher(compiled)
        """The library's matcher; for whoever leaves its state as it was."""

    def fresh(self) -> GrammarMatcher:
        """Another matcher of the same grammar, at its beginning."""
        other = GrammarMatcher.__new__(GrammarMatcher)
        trigger = None if self._watch is None else self._watch.trigger
        other._begin(self._compiled, self.vocab_size, self.end_token_id, trigger, self._max_rollback)
        return other

    @property
    def is_constrained(self) -> bool:
        """Whether the next token is restricted: by the grammar or to the next token of a forced trigger."""
        return self.is_in_grammar or (self._watch is not None and self._watch.forced_token_id is not None)

    @property
    def is_in_grammar(self) -> bool:
        """Whether the next token is the grammar's to judge: after the trigger, before the end."""
        return self._tokens_after_end < 0 and (self._watch is None or not self._watch.is_pending)

    @property
    def is_finished(self) -> bool:
        """Whether the end token was accepted; everything after it is free."""
        return self._tokens_after_end >= 0

    @property
    def trigger_progress(self) -> int:
        """Tokens of the trigger seen; 0 without one."""
        return 0 if self._watch is None else self._watch.progress

    @property
    def tokens_after_bound(self) -> int:
        """-1 before the bound token; tokens after the end token do not count."""
        return -1 if self._watch is None else self._watch.tokens_after_bound

    @property
    def tokens_after_end(self) -> int:
        """-1 before the end token."""
        return self._tokens_after_end

    def accept(self, token_id: int) -> bool:
        """Advance by one token; False, and no change, if it is not allowed. Ids outside the vocabulary never are."""
        if not 0 <= token_id < self.vocab_size:
            return False
        watch = self._watch
        if watch is not None and watch.is_pending:
            return watch.accept(token_id)
        if self._tokens_after_end >= 0:
            self._tokens_after_end += 1
            return True
        if not self.grammar.accept_token(token_id):
            return False
        self._num_in_grammar += 1
        if watch is not None:
            watch.count()
        if token_id == self.end_token_id:
            self._tokens_after_end = 0
        return True

    def rollback(self, num_tokens: int) -> None:
        """Take back the last accepted tokens, across the end token and the trigger, too.

        More than were accepted lead to the beginning. Raises ValueError, and changes nothing, for a negative number
        and, with a trigger, for more than are kept.
        """
        num_after_end = min(num_tokens, max(self._tokens_after_end, 0))
        num_before = num_tokens - num_after_end
        watch = self._watch
        if num_tokens < 0 or (watch is not None and num_before > watch.num_kept):
            kept = "any number" if watch is None else f"{watch.num_kept + max(self._tokens_after_end, 0)}"
            raise ValueError(f"rollback of {shown(num_tokens)} tokens; 0 to {kept} can be taken back")
        if not num_before:
            self._tokens_after_end -= num_after_end
            return
        num_in_grammar = min(num_before, self._num_in_grammar)
        self.grammar.rollback(num_in_grammar)
        self._num_in_grammar -= num_in_grammar
        self._tokens_after_end = -1
        if watch is not None:
            watch.rollback(num_before)

    def fill_bitmask(self, bitmask: NDArray[np.int32], row: int) -> None:
        """Write the tokens allowed next into row `row` of bitmask int32 [rows, words], bit i % 32 of word i // 32.

        words: vocab_size / 32, rounded up. Bits from vocab_size on mean nothing. Where the text is free, and after
        the end, everything is allowed. Raises ValueError for an array of another shape or layout.
        """
        self.check_bitmask(bitmask)
        if not 0 <= row < len(bitmask):
            raise ValueError(f"row is {shown(row)}; the bitmask has {len(bitmask)} rows")
        if self.is_in_grammar:
            self.grammar.fill_next_token_bitmask(bitmask, row)
            return
        forced = None if self._watch is None else self._watch.forced_token_id
        bitmask[row] = -1 if forced is None else 0
        if forced is not None:
            bitmask.view(np.uint32)[row, forced // 32] = 1 << forced % 32

    def check_bitmask(self, bitmask: NDArray[np.int32]) -> None:
        """Raises ValueError unless it is a contiguous int32 array of rows for this vocabulary."""
        words = num_words(self.vocab_size)
        is_ours = bitmask.dtype == np.int32 and bitmask.ndim == 2 and bitmask.shape[1] == words
        if not (is_ours and bitmask.flags.c_contiguous and bitmask.flags.writeable):
            raise ValueError(
                f"the bitmask is {bitmask.dtype} {list(bitmask.shape)}; it must be contiguous, writable int32 "
                f"[rows, {words}]"
            )

    def refusal(self, token_id: int) -> str:
        """By what the token is not allowed next, for messages."""
        if not 0 <= token_id < self.vocab_size:
            return f"by the vocabulary of {self.vocab_size}"
        forced = None if self._watch is None else self._watch.forced_token_id
        if forced is not None:
            return f"by the trigger, which goes on with token {forced}"
        return f"by the grammar after {self._num_in_grammar} tokens"

    def dead_end(self) -> str:
        """That nothing is allowed next, for messages."""
        return f"the grammar allows no token after {self._num_in_grammar} tokens"


def _trigger_of(token_ids: Sequence[int], bound_token_id: int | None, vocab_size: int) -> Trigger | None:
    if bound_token_id is not None and not token_ids:
        raise RequestError(f"bound_token_id is {shown(bound_token_id)} without a trigger; it needs one to force")
    for token_id in (*token_ids, *(() if bound_token_id is None else (bound_token_id,))):
        if not 0 <= token_id < vocab_size:
            raise RequestError(f"trigger or bound token {shown(token_id)} is not one of the {vocab_size} tokens")
    return Trigger(token_ids, bound_token_id) if token_ids else None
