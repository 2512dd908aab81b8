"""What a check found: warnings are collected, the first error ends it."""

from __future__ import annotations

from typing import NoReturn

from thalweg.interfaces import RequestError
from thalweg.structured.lint.limits import MAX_PIECES, MAX_WARNINGS
from thalweg.structured.lint.paths import Path


class Findings:
    """Of one specification of this kind."""

    def __init__(self, kind: str) -> None:
        self._kind = kind
        self._warnings: dict[str, None] = {}
        self._num_more = 0
        self._num_pieces = 0

    @property
    def warnings(self) -> tuple[str, ...]:
        """In the order of the source; only so many, and the number of the rest."""
        more = (f"{self._kind}: and {self._num_more} more",) if self._num_more else ()
        return (*self._warnings, *more)

    def warn(self, path: Path, text: str) -> None:
        """Note that the output at this place will be held to less, or to more, than was asked."""
        warning = f"{self._kind}: {path} {text}"
        if len(self._warnings) < MAX_WARNINGS:
            self._warnings[warning] = None
        elif warning not in self._warnings:
            self._num_more += 1

    def count_piece(self, path: Path) -> None:
        """Of a regular expression; refuses too many of them."""
        self._num_pieces += 1
        if self._num_pieces > MAX_PIECES:
            self.refuse(path, f"makes more than {MAX_PIECES} pieces with the expressions before it")

    def refuse(self, path: Path, text: str) -> NoReturn:
        """Raise RequestError for this place."""
        raise RequestError(f"invalid grammar: {self._kind}: {path} {text}")
