"""Whether a text belongs to a grammar, by Earley's algorithm: any context-free rules, ambiguous or left-recursive."""

from __future__ import annotations

from collections.abc import Iterable

from structured_testing.ebnf import Letters, Rules, Symbol, read_rules

_Item = tuple[str, tuple[Symbol, ...], int, int]
"""A rule's name, one of its sequences, how many of its symbols were found, and where the first one began."""


class Recogniser:
    """Of one grammar in EBNF with the rule `root`. Raises ValueError for a grammar that it cannot read."""

    def __init__(self, source: str) -> None:
        self._rules = read_rules(source)
        if "root" not in self._rules.alternatives:
            raise ValueError("there is no rule root")
        self._nullable = _nullable(self._rules)

    def accepts(self, text: str) -> bool:
        """Whether the whole text is derived from the root."""
        states = self._states(text)
        is_complete = any(
            name == "root" and found == len(symbols) and begin == 0 for name, symbols, found, begin in states[-1]
        )
        return len(states) == len(text) + 1 and is_complete

    def _states(self, text: str) -> list[list[_Item]]:
        """The items after each character, as far as any are left."""
        states = [self._closed(self._predicted("root", 0), [], 0)]
        for place, letter in enumerate(text):
            moved = [
                (name, symbols, found + 1, begin)
                for name, symbols, found, begin in states[place]
                if found < len(symbols) and isinstance(symbols[found], Letters) and letter in symbols[found]
            ]
            if not moved:
                break
            states.append(self._closed(moved, states, place + 1))
        return states

    def _closed(self, items: Iterable[_Item], before: list[list[_Item]], place: int) -> list[_Item]:
        """Items with everything that they predict and complete; this state is not among those before."""
        state: list[_Item] = []
        seen: set[_Item] = set()

        def add(found: Iterable[_Item]) -> None:
            for item in found:
                if item not in seen:
                    seen.add(item)
                    state.append(item)

        add(items)
        for name, symbols, found, begin in state:  # grows
            if found == len(symbols):
                waiting = before[begin] if begin < place else list(state)
                add(
                    (outer, outer_symbols, outer_found + 1, outer_begin)
                    for outer, outer_symbols, outer_found, outer_begin in waiting
                    if outer_found < len(outer_symbols) and outer_symbols[outer_found] == name
                )
                continue
            wanted = symbols[found]
            if isinstance(wanted, str):
                add(self._predicted(wanted, place))
                if wanted in self._nullable:  # completed here already, maybe before this item came
                    add([(name, symbols, found + 1, begin)])
        return state

    def _predicted(self, name: str, place: int) -> list[_Item]:
        return [(name, symbols, 0, place) for symbols in self._rules.alternatives[name]]


def _nullable(rules: Rules) -> set[str]:
    """Rules that stand for nothing, too."""
    found: set[str] = set()
    size = -1
    while size < len(found):
        size = len(found)
        for name, sequences in rules.alternatives.items():
            if any(found.issuperset(sequence) for sequence in sequences):
                found.add(name)
    return found
