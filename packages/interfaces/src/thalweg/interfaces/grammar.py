"""Contracts of constrained decoding."""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from concurrent.futures import Future
from dataclasses import dataclass
from typing import TYPE_CHECKING, Protocol

from thalweg.interfaces.grammar_spec import GrammarSpec

if TYPE_CHECKING:
    import numpy as np
    from numpy.typing import NDArray


class Matcher(Protocol):
    """Follows one output through its grammar."""

    @property
    def is_constrained(self) -> bool:
        """Whether the next token is restricted: the trigger has been seen and the end token has not."""

    @property
    def is_finished(self) -> bool:
        """Whether the end token was accepted; everything after it is free."""

    def accept(self, token_id: int) -> bool:
        """Advance by one token; False, and no change, if it is not allowed."""

    def rollback(self, num_tokens: int) -> None:
        """Take back the last accepted tokens, across the end token and the trigger, too.

        More than were accepted lead to the beginning, or are more than can be taken back: that raises ValueError.
        """

    def fill_bitmask(self, bitmask: NDArray[np.int32], row: int) -> None:
        """Write the tokens allowed next into row `row` of bitmask int32 [rows, words], bit i % 32 of word i // 32."""

    def fresh(self) -> Matcher:
        """Another matcher of the same grammar, at its beginning."""


@dataclass(frozen=True, slots=True)
class DraftWalk:
    """What one output wants in a step: masks for the row of its newest token and for the rows of its drafts."""

    matcher: Matcher
    token_ids: Sequence[int]
    """Committed tokens that the matcher has not seen; accepted for good before anything else."""
    draft_ids: Sequence[int]
    """Fed after them one by one up to the first that is not allowed, and taken back in the end."""
    first_row: int
    """Of the bitmask; the walk owns rows first_row .. first_row + len(draft_ids)."""


@dataclass(frozen=True, slots=True)
class FilledMasks:
    """What became of the walks of a step."""

    is_filled: NDArray[np.bool_]
    """[rows of the bitmask] the row holds a mask. Others are free, or follow a draft that is not allowed."""
    failures: Mapping[int, str]
    """Walk -> why its output cannot go on. It has no filled rows, and the others are as if it were not there."""


class MaskFiller(Protocol):
    """Builds the masks of a step."""

    def fill(self, walks: Sequence[DraftWalk], bitmask: NDArray[np.int32]) -> FilledMasks:
        """Fill the constrained rows of bitmask int32 [rows, words]. What goes wrong with one walk fails it alone."""


@dataclass(frozen=True, slots=True)
class GrammarCounts:
    """Totals of a compiler since it was made."""

    num_submitted: int = 0
    num_compiled: int = 0
    num_cache_hits: int = 0
    num_failed: int = 0
    """Refused by the grammar library, or given up by the worker; refusals before that are not counted."""
    num_timeouts: int = 0
    """Of those, the ones that met their deadline or a limit of the worker."""
    num_cancelled: int = 0
    num_workers_replaced: int = 0
    compile_s: float = 0.0
    """Seconds from submission to result of everything that was compiled."""
    cache_bytes: int = 0
    """Now."""


class GrammarCompiler(Protocol):
    """Turns specifications into matchers, off the step path."""

    @property
    def counts(self) -> GrammarCounts:
        """Totals so far."""

    def compile(self, spec: GrammarSpec, *, user: str = "") -> Future[Matcher]:
        """Start compiling; the future fails with RequestError for a grammar that cannot be served.

        user: who waits for it; nobody's requests hold up those of others.
        Raises RequestError at once for what is wrong with the specification itself, or too much of one user waiting.
        """

    def cancel(self, pending: Iterable[Future[Matcher]]) -> None:
        """Give up on grammars nobody waits for; their futures are cancelled."""

    def close(self) -> None:
        """End the workers and fail what is pending."""
