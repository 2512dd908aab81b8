"""The masks of a step: one for the newest token of every output, and one after each draft that its grammar allows."""

from __future__ import annotations

import logging
from collections.abc import Sequence
from weakref import WeakKeyDictionary

import numpy as np
from numpy.typing import NDArray

from thalweg.interfaces import ConfigError, DraftWalk, FilledMasks, Matcher, RequestError, shown
from thalweg.structured.bitmask import is_allowed
from thalweg.structured.draft_chains import ChainFiller, DraftChain
from thalweg.structured.matcher import GrammarMatcher

logger = logging.getLogger(__name__)


class BatchFiller:
    """Builds the masks of a step; satisfies `thalweg.interfaces.MaskFiller`.

    num_threads: threads that share the work, the caller's among them; more than one pays off only for large steps.
    A matcher that failed stays out of service: every later walk of it fails with the same message.
    """

    def __init__(self, num_threads: int = 1) -> None:
        if not isinstance(num_threads, int) or isinstance(num_threads, bool) or num_threads < 1:
            raise ConfigError(f"num_threads is {shown(num_threads)}; it must be an integer, at least 1")
        self._chain_filler = ChainFiller(num_threads)
        self._out_of_service: WeakKeyDictionary[Matcher, str] = WeakKeyDictionary()

    def fill(self, walks: Sequence[DraftWalk], bitmask: NDArray[np.int32]) -> FilledMasks:
        """Fill the constrained rows of bitmask int32 [rows, words]. What goes wrong with one walk fails it alone.

        Committed tokens are accepted for good, drafts are fed up to the first that is not allowed, or to the end
        token, and taken back. Rows that are not filled may have been written to.
        """
        is_filled = np.zeros(len(bitmask), bool)
        failures: dict[int, str] = {}
        chains: dict[int, DraftChain] = {}
        checked_sizes: set[int] = set()
        for number, walk in enumerate(walks):
            try:
                self._begin(walk, bitmask)
                matcher = walk.matcher
                if type(matcher) is GrammarMatcher and matcher.is_in_grammar:
                    if matcher.vocab_size not in checked_sizes:
                        matcher.check_bitmask(bitmask)
                        checked_sizes.add(matcher.vocab_size)
                    chains[number] = DraftChain(matcher, np.array(walk.draft_ids, np.int64), walk.first_row)
                else:
                    is_filled[fill_step_by_step(walk, bitmask)] = True
            except Exception as error:
                failures[number] = self._retire(walk.matcher, error)
        counts, errors = self._chain_filler.fill(list(chains.values()), bitmask)
        for chain, count in zip(chains.values(), counts.tolist(), strict=True):
            is_filled[chain.first_row : chain.first_row + count] = True
        numbers = list(chains)
        for position, failure in errors.items():
            failures[numbers[position]] = self._retire(walks[numbers[position]].matcher, failure)
        return FilledMasks(is_filled, failures)

    def _begin(self, walk: DraftWalk, bitmask: NDArray[np.int32]) -> None:
        """Accept the committed tokens of a walk."""
        matcher, last_row = walk.matcher, walk.first_row + len(walk.draft_ids)
        if self._out_of_service and matcher in self._out_of_service:
            raise RequestError(self._out_of_service[matcher])
        if walk.first_row < 0 or last_row >= len(bitmask):
            raise ValueError(f"rows {walk.first_row} to {last_row} of a bitmask of {len(bitmask)} rows")
        for token_id in walk.token_ids:
            if not matcher.accept(token_id):
                reason = matcher.refusal(token_id) if isinstance(matcher, GrammarMatcher) else "by the grammar"
                raise RequestError(f"token {token_id} is not allowed {reason}")

    def _retire(self, matcher: Matcher, error: Exception) -> str:
        """Put the matcher out of service; why."""
        message = self._out_of_service.get(matcher)
        if message is None:
            is_expected = isinstance(error, RequestError)
            message = str(error) if is_expected else f"the matcher failed: {error!r}"
            logger.warning("a matcher is out of service: %s", message, exc_info=None if is_expected else error)
            self._out_of_service[matcher] = message
        return message


def fill_step_by_step(walk: DraftWalk, bitmask: NDArray[np.int32]) -> list[int]:
    """Fill the rows of a walk whose committed tokens are accepted, for any matcher; which ones.

    It is what everything faster has to equal. A draft that a matcher refuses is taken out of its mask, should it be
    there: it must not be accepted, for behind it nothing is masked.
    """
    matcher, row = walk.matcher, walk.first_row
    filled: list[int] = []
    num_fed = 0
    try:
        if matcher.is_constrained:
            matcher.fill_bitmask(bitmask, row)
            filled.append(row)
        for token_id in walk.draft_ids:
            is_masked = bool(filled) and filled[-1] == row
            if is_masked and not is_allowed(bitmask[row], token_id):
                break
            if not matcher.accept(token_id):
                if is_masked:
                    bitmask.view(np.uint32)[row, token_id // 32] &= ~np.uint32(1 << token_id % 32)
                break
            num_fed += 1
            row += 1
            if matcher.is_constrained:
                matcher.fill_bitmask(bitmask, row)
                filled.append(row)
    finally:
        matcher.rollback(num_fed)
    return filled
