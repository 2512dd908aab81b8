"""Grammars that are functions of the tokens so far, and masks filled one token at a time."""

from __future__ import annotations

from collections.abc import Callable, Collection, Sequence

import numpy as np
from numpy.typing import NDArray

from thalweg.interfaces import DraftWalk, FilledMasks

Grammar = Callable[[tuple[int, ...]], Collection[int] | None]
"""Tokens that may follow these; None = all."""


class FunctionMatcher:
    """thalweg.interfaces.Matcher of a function. eos: ends the grammar where it is allowed."""

    def __init__(self, grammar: Grammar, eos: int = -1) -> None:
        self._grammar = grammar
        self._eos = eos
        self.token_ids: list[int] = []
        """Accepted so far."""
        self._end: int | None = None

    @property
    def is_constrained(self) -> bool:
        return not self.is_finished and self._allowed() is not None

    @property
    def is_finished(self) -> bool:
        return self._end is not None

    def accept(self, token_id: int) -> bool:
        if not self.is_finished:
            allowed = self._allowed()
            if allowed is not None and token_id not in allowed:
                return False
            if allowed is not None and token_id == self._eos:
                self._end = len(self.token_ids)
        self.token_ids.append(token_id)
        return True

    def rollback(self, num_tokens: int) -> None:
        if num_tokens > len(self.token_ids):
            raise ValueError(f"num_tokens is {num_tokens}; {len(self.token_ids)} were accepted")
        del self.token_ids[len(self.token_ids) - num_tokens :]
        if self._end is not None and self._end >= len(self.token_ids):
            self._end = None

    def fill_bitmask(self, bitmask: NDArray[np.int32], row: int) -> None:
        allowed = self._allowed()
        bits = np.ones(32 * bitmask.shape[1], np.bool_)
        if allowed is not None and not self.is_finished:
            bits[:] = False
            bits[list(allowed)] = True
        bitmask[row] = np.packbits(bits, bitorder="little").view("<i4")

    def fresh(self) -> FunctionMatcher:
        return FunctionMatcher(self._grammar, self._eos)

    def _allowed(self) -> Collection[int] | None:
        return self._grammar(tuple(self.token_ids))


class PlainFiller:
    """thalweg.interfaces.MaskFiller that does one thing after the other."""

    def fill(self, walks: Sequence[DraftWalk], bitmask: NDArray[np.int32]) -> FilledMasks:
        is_filled = np.zeros(bitmask.shape[0], np.bool_)
        failures: dict[int, str] = {}
        for index, walk in enumerate(walks):
            refused = next((token_id for token_id in walk.token_ids if not walk.matcher.accept(token_id)), None)
            if refused is not None:
                failures[index] = f"token {refused} is not allowed by the grammar"
                continue
            num_fed = 0
            for place in range(1 + len(walk.draft_ids)):
                if walk.matcher.is_constrained:
                    walk.matcher.fill_bitmask(bitmask, walk.first_row + place)
                    is_filled[walk.first_row + place] = True
                if place == len(walk.draft_ids) or not walk.matcher.accept(walk.draft_ids[place]):
                    break
                num_fed += 1
            walk.matcher.rollback(num_fed)
        return FilledMasks(is_filled, failures)
