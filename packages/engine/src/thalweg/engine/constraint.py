"""The grammar of one output, and how far along it the output is."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

from thalweg.interfaces import Matcher


@dataclass(slots=True, eq=False)
class Constraint:
    """A matcher that follows the committed tokens of one output, whatever happens to its sequence.

    It is brought forward only when masks are wanted, and drafts are taken back by whoever feeds them, so a preemption,
    a fork or a recomputed prompt needs no care.
    """

    matcher: Matcher
    num_seen: int = 0
    """Tokens of the output that the matcher has accepted."""

    def unseen(self, output_token_ids: Sequence[int]) -> Sequence[int]:
        """Committed tokens that the matcher has yet to accept."""
        return output_token_ids[self.num_seen :]
