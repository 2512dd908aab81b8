"""Stop strings over text that arrives in pieces."""

from __future__ import annotations

from collections.abc import Sequence


class StopChecker:
    """Cuts a stream of text at the first stop string, wherever the pieces are cut.

    The stop string whose last character comes first wins; of two that end together, the one listed first. Text that
    could be the beginning of a stop string is held back until the next characters decide. Time is linear in the text
    (times the number of stop strings), whatever it looks like.
    """

    def __init__(self, stop: Sequence[str] = ()) -> None:
        self._automata = tuple(_Automaton(text) for text in stop)
        self._held = ""
        self._pieces: list[str] = []
        self._matched: str | None = None

    @property
    def matched(self) -> str | None:
        """The stop string that ended the text; None while there was none."""
        return self._matched

    @property
    def text(self) -> str:
        """Everything released so far."""
        self._pieces = ["".join(self._pieces)]
        return self._pieces[0]

    def push(self, piece: str, *, can_stop: bool = True) -> str:
        """Take more text; what can be shown now. After a match the text has ended and this is always empty.

        can_stop: whether a stop string may end in this piece; one that does although it may not is ordinary text.
        """
        if self._matched is not None:
            return ""
        if not self._automata:
            return self._release(piece)
        pending = self._held + piece
        for position, character in enumerate(piece, start=len(self._held) + 1):
            for automaton in self._automata:
                automaton.advance(character)
            for automaton in self._automata:
                if automaton.has_match and not can_stop:
                    automaton.ignore_match()
                elif automaton.has_match:
                    self._matched = automaton.pattern
                    self._held = ""
                    return self._release(pending[: position - len(automaton.pattern)])
        num_held = max(automaton.length for automaton in self._automata)
        released = len(pending) - num_held
        self._held = pending[released:]
        return self._release(pending[:released])

    def finish(self) -> str:
        """Release what was held back; no more text comes."""
        held, self._held = self._held, ""
        for automaton in self._automata:
            automaton.reset()
        return self._release(held)

    def _release(self, text: str) -> str:
        self._pieces.append(text)
        return text


class _Automaton:
    """How much of one pattern the text seen so far ends with (Knuth, Morris and Pratt)."""

    def __init__(self, pattern: str) -> None:
        if not pattern:
            raise ValueError("a stop string must not be empty")
        self.pattern = pattern
        self.length = 0
        self._borders = _border_lengths(pattern)

    @property
    def has_match(self) -> bool:
        return self.length == len(self.pattern)

    def advance(self, character: str) -> None:
        self.length = _extend(self.pattern, self._borders, self.length, character)

    def ignore_match(self) -> None:
        self.length = self._borders[self.length]

    def reset(self) -> None:
        self.length = 0


def _border_lengths(pattern: str) -> list[int]:
    """Entry n: the longest proper prefix of the first n characters that they also end with; entry 0 is unused."""
    borders = [0, 0]
    for character in pattern[1:]:
        borders.append(_extend(pattern, borders, borders[-1], character))
    return borders


def _extend(pattern: str, borders: list[int], length: int, character: str) -> int:
    """The longest prefix that the text ends with, after `character` follows a prefix of `length` characters."""
    if length == len(pattern):
        length = borders[length]
    while length and pattern[length] != character:
        length = borders[length]
    return length + 1 if pattern[length] == character else 0
