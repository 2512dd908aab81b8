"""The masks of a step: one for the newest token of every output, and one after each draft that its grammar allows."""

from __future__ import annotations

import logging
from collections.abc import Sequence
from dataclasses import dataclass, field
from weakref import WeakKeyDictionary

import numpy as np
from numpy.typing import NDArray

from thalweg.interfaces import ConfigError, DraftWalk, FilledMasks, Matcher, RequestError, shown
from thalweg.structured.bitmask import is_allowed
from thalweg.structured.draft_chains import ChainFiller, DraftChain
from thalweg.structured.matcher import GrammarMatcher
from thalweg.structured.pace import Pace

logger = logging.getLogger(__name__)


@dataclass(slots=True)
class _Step:
    """What becomes of the walks of a step, by number."""

    is_filled: NDArray[np.bool_]
    chains: dict[int, DraftChain] = field(default_factory=dict)
    failures: dict[int, str] = field(default_factory=dict)
    slow: dict[int, float] = field(default_factory=dict)
    """Seconds of the processor, of those that took too many."""


class BatchFiller:
    """Builds the masks of a step; satisfies `thalweg.interfaces.MaskFiller`.

    num_threads: threads that share the work, the caller's among them; more than one pays off only for large steps.
    max_walk_s: seconds of the processor. A walk that takes longer in two steps in a row fails: there are grammars that
    compile in no time and take a second for a mask.
    A matcher that failed stays out of service: every later walk of it fails with the same message.
    """

    def __init__(self, num_threads: int = 1, *, max_walk_s: float = 0.1) -> None:
        if not isinstance(num_threads, int) or isinstance(num_threads, bool) or num_threads < 1:
            raise ConfigError(f"num_threads is {shown(num_threads)}; it must be an integer, at least 1")
        if not isinstance(max_walk_s, int | float) or isinstance(max_walk_s, bool) or not max_walk_s > 0:
            raise ConfigError(f"max_walk_s is {shown(max_walk_s)}; it must be a number above 0")
        self._max_walk_s = max_walk_s
        self._chain_filler = ChainFiller(num_threads, max_walk_s)
        self._out_of_service: WeakKeyDictionary[Matcher, str] = WeakKeyDictionary()
        self._slow: WeakKeyDictionary[Matcher, float] = WeakKeyDictionary()
        """Matchers whose last walk took too long, and how long."""

    def fill(self, walks: Sequence[DraftWalk], bitmask: NDArray[np.int32]) -> FilledMasks:
        """Fill the constrained rows of bitmask int32 [rows, words]. What goes wrong with one walk fails it alone.

        Committed tokens are accepted for good, drafts are fed up to the first that is not allowed, or to the end
        token, and taken back. Rows that are not filled may have been written to.
        """
        step = _Step(np.zeros(len(bitmask), bool))
        self._begin_all(walks, bitmask, step)
        numbers, chains = list(step.chains), list(step.chains.values())
        counts, errors, slow = self._chain_filler.fill(chains, bitmask)
        for chain, count in zip(chains, counts.tolist(), strict=True):
            step.is_filled[chain.first_row : chain.first_row + count] = True
        for position, error in errors.items():
            step.failures[numbers[position]] = self._retire(chains[position].matcher, error)
        for position, taken_s in slow.items():
            step.slow[numbers[position]] = taken_s
        if step.slow or self._slow:
            self._judge_pace(walks, step)
        return FilledMasks(step.is_filled, step.failures)

    def _begin_all(self, walks: Sequence[DraftWalk], bitmask: NDArray[np.int32], step: _Step) -> None:
        """Bring every matcher to where its walk begins, and walk with those that do not go along chains."""
        checked_sizes: set[int] = set()
        pace = Pace(self._max_walk_s)
        for number, walk in enumerate(walks):
            try:
                self._begin(walk, bitmask)
                matcher = walk.matcher
                if type(matcher) is GrammarMatcher and matcher.is_in_grammar:
                    if matcher.vocab_size not in checked_sizes:
                        matcher.check_bitmask(bitmask)
                        checked_sizes.add(matcher.vocab_size)
                    step.chains[number] = DraftChain(matcher, np.array(walk.draft_ids, np.int64), walk.first_row)
                else:
                    step.is_filled[fill_step_by_step(walk, bitmask)] = True
            except Exception as error:
                step.failures[number] = self._retire(walk.matcher, error)
            if taken_s := pace.lap():
                step.slow[number] = taken_s

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

    def _judge_pace(self, walks: Sequence[DraftWalk], step: _Step) -> None:
        """Fail the walks that were slow, and were so in their last step, too; once may be anybody's fault."""
        for number, walk in enumerate(walks):
            was_slow = self._slow.pop(walk.matcher, None) is not None
            taken_s = step.slow.get(number)
            if taken_s is None or number in step.failures:
                continue
            if not was_slow:
                self._slow[walk.matcher] = taken_s
                continue
            error = RequestError(
                f"masks of the grammar took {taken_s:.2f} s of the processor in one step; at most "
                f"{self._max_walk_s:g} s are allowed"
            )
            step.failures[number] = self._retire(walk.matcher, error)
            step.is_filled[walk.first_row : walk.first_row + len(walk.draft_ids) + 1] = False

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
