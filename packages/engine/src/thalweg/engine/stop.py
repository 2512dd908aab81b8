"""Stop strings over text that arrives in pieces."""

from __future__ import annotations

from collections import deque
from collections.abc import Sequence
from dataclasses import dataclass, field


class StopStrings:
    """Any number of stop strings as one automaton (Aho and Corasick), built once and shared by all outputs.

    Its states are the beginnings of stop strings; that of a text is the longest one that the text ends with. Building
    it takes time and memory in proportion to the length of all strings.
    Raises ValueError for an empty string.
    """

    ROOT = 0
    """The state of a text that ends with the beginning of no stop string."""

    def __init__(self, stop: Sequence[str]) -> None:
        self.strings = tuple(stop)
        self._nodes = [_Node()]
        for index, text in enumerate(self.strings):
            if not text:
                raise ValueError("a stop string must not be empty")
            self._add(text, index)
        self._link()

    def advance(self, state: int, character: str) -> int:
        """The state after one more character. A whole stop string, too, is a state; `resume` leads on from it."""
        nodes = self._nodes
        while (following := nodes[state].children.get(character)) is None:
            if state == self.ROOT:
                return self.ROOT
            state = nodes[state].fallback
        return following

    def match(self, state: int) -> str | None:
        """The stop string that ends where the text of this state ends; of several, the one listed first."""
        index = self._nodes[state].match
        return None if index is None else self.strings[index]

    def resume(self, state: int) -> int:
        """The state for a text that goes on whatever has ended in it: one that some stop string still continues."""
        while state != self.ROOT and not self._nodes[state].children:
            state = self._nodes[state].fallback
        return state

    def length(self, state: int) -> int:
        """How many characters of the text may still turn out to begin a stop string."""
        return self._nodes[state].length

    def _add(self, text: str, index: int) -> None:
        state = self.ROOT
        for character in text:
            node = self._nodes[state]
            following = node.children.get(character)
            if following is None:
                following = node.children[character] = len(self._nodes)
                self._nodes.append(_Node(length=node.length + 1))
            state = following
        if self._nodes[state].match is None:
            self._nodes[state].match = index

    def _link(self) -> None:
        """Find every fallback and what else ends with a state, shorter states first."""
        waiting = deque(self._nodes[self.ROOT].children.values())
        while waiting:
            node = self._nodes[waiting.popleft()]
            inherited = self._nodes[node.fallback].match
            if inherited is not None and (node.match is None or inherited < node.match):
                node.match = inherited
            for character, child in node.children.items():
                self._nodes[child].fallback = self.advance(node.fallback, character)
                waiting.append(child)


@dataclass(slots=True)
class _Node:
    """A beginning of stop strings."""

    length: int = 0
    children: dict[str, int] = field(default_factory=dict)
    fallback: int = StopStrings.ROOT
    """Its longest proper end that is a state, too."""
    match: int | None = None
    """The first of the stop strings that it ends with."""


class StopChecker:
    """Cuts a stream of text at the first stop string, wherever the pieces are cut.

    The stop string whose last character comes first wins; of those that end together, the one listed first. Text that
    could be the beginning of a stop string is held back until the next characters decide. Time is linear in the text,
    whatever it looks like and however many stop strings there are.
    """

    def __init__(self, stop: StopStrings) -> None:
        self._stop = stop
        self._state = StopStrings.ROOT
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
        stop, state, pending = self._stop, self._state, self._held + piece
        if not stop.strings:
            return self._release(piece)
        for position, character in enumerate(piece, start=len(self._held) + 1):
            state = stop.advance(state, character)
            found = stop.match(state)
            if found is not None and can_stop:
                self._matched, self._held = found, ""
                return self._release(pending[: position - len(found)])
        self._state = stop.resume(state)
        released = len(pending) - stop.length(self._state)
        self._held = pending[released:]
        return self._release(pending[:released])

    def finish(self) -> str:
        """Release what was held back; no more text comes."""
        held, self._held, self._state = self._held, "", StopStrings.ROOT
        return self._release(held)

    def _release(self, text: str) -> str:
        self._pieces.append(text)
        return text
