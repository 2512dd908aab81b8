"""Contracts of constrained decoding."""

from __future__ import annotations

from collections.abc import Sequence
from concurrent.futures import Future
from typing import TYPE_CHECKING, Protocol

from thalweg.interfaces.sampling_params import GrammarSpec

if TYPE_CHECKING:
    import numpy as np
    from numpy.typing import NDArray


class Matcher(Protocol):
    """Follows one output through its grammar."""

    def fill_bitmask(self, bitmask: NDArray[np.int32], row: int) -> bool:
        """Write the tokens allowed next into bitmask[row] (bit i%32 of word i/32); False if everything is allowed."""

    def accept(self, token_id: int) -> bool:
        """Advance by one token; False, and no change, if it is not allowed."""

    def rollback(self, num_tokens: int) -> None:
        """Take back the last accepted tokens."""

    @property
    def is_terminated(self) -> bool: ...


class GrammarCompiler(Protocol):
    """Turns a specification into a matcher, off the step path."""

    def compile(self, spec: GrammarSpec) -> Future[Matcher]:
        """Start compiling; the future fails with RequestError for a grammar that cannot be served."""

    def cancel(self, pending: Sequence[Future[Matcher]]) -> None:
        """Give up on grammars nobody waits for."""
