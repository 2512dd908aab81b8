"""Reads grammars in EBNF into plain rules.

A grammar is `name ::= expression` lines; an expression has alternatives `|`, sequences, groups, literals "..",
character classes [..], the repetitions `*`, `+`, `?`, `{m}`, `{m,}`, `{m,n}`, and comments after `#`.
"""

from __future__ import annotations

import re
from dataclasses import dataclass, field

_TOKENS = re.compile(
    r"""(?P<space>(?:\s|\#[^\n]*)+)|(?P<rule>[A-Za-z_]\w*\s*::=)|(?P<name>[A-Za-z_]\w*)|"(?P<text>(?:[^"\\\n]|\\.)*)"
    |\[(?P<letters>(?:[^\]\\]|\\.)*)\]|(?P<repeat>[*+?]|\{\d+(?:,\d*)?\})|(?P<mark>[()|])""",
    re.VERBOSE,
)
_LETTER = re.compile(r"\\u([0-9a-fA-F]{4})|\\x([0-9a-fA-F]{2})|\\(.)|(.)", re.DOTALL)
_ESCAPES = {"n": "\n", "t": "\t", "r": "\r"}


@dataclass(frozen=True, slots=True)
class Letters:
    """One character of a set, or not of it."""

    ranges: tuple[tuple[str, str], ...]
    is_negated: bool = False

    def __contains__(self, letter: str) -> bool:
        return any(low <= letter <= high for low, high in self.ranges) != self.is_negated


Symbol = str | Letters
"""The name of a rule, or a character."""


@dataclass(slots=True)
class Rules:
    """Context-free rules: a name, and the sequences of symbols that it stands for."""

    alternatives: dict[str, list[tuple[Symbol, ...]]] = field(default_factory=dict)

    def add(self, alternatives: list[tuple[Symbol, ...]]) -> str:
        """A new rule of these alternatives."""
        name = f"({len(self.alternatives)})"
        self.alternatives[name] = alternatives
        return name


def read_rules(source: str) -> Rules:
    """The rules of a grammar. Raises ValueError for what it cannot read, and for rules that do not exist."""
    reader = _Reader(source)
    while reader.kind != "end":
        name = reader.take("rule")[:-3].strip()
        if name in reader.rules.alternatives:
            raise ValueError(f"rule {name} is there twice")
        reader.rules.alternatives[name] = []
        reader.rules.alternatives[name] = reader.alternatives()
    for sequences in reader.rules.alternatives.values():
        for symbol in (symbol for sequence in sequences for symbol in sequence):
            if isinstance(symbol, str) and symbol not in reader.rules.alternatives:
                raise ValueError(f"there is no rule {symbol}")
    return reader.rules


class _Reader:
    """Descends through the text; `kind` and `value` are those of the next token."""

    def __init__(self, source: str) -> None:
        self.rules = Rules()
        self._source, self._end = source, 0
        self._next()

    def take(self, kind: str) -> str:
        if self.kind != kind:
            raise ValueError(f"expected {kind}, found {self.value!r}")
        value = self.value
        self._next()
        return value

    def alternatives(self) -> list[tuple[Symbol, ...]]:
        found = [self._sequence()]
        while (self.kind, self.value) == ("mark", "|"):
            self._next()
            found.append(self._sequence())
        return found

    def _sequence(self) -> tuple[Symbol, ...]:
        symbols: list[Symbol] = []
        while self.kind in ("name", "text", "letters") or (self.kind, self.value) == ("mark", "("):
            item = self._item()
            if self.kind == "repeat":
                item = (self._repeated(item, self.take("repeat")),)
            symbols += item
        return tuple(symbols)

    def _item(self) -> tuple[Symbol, ...]:
        kind, value = self.kind, self.value
        self._next()
        if kind == "name":
            return (value,)
        if kind == "text":
            return tuple(Letters(((letter, letter),)) for letter in _letters(value))
        if kind == "letters":
            return (_class(value),)
        inner = self.rules.add(self.alternatives())
        if self.take("mark") != ")":
            raise ValueError("a group does not end")
        return (inner,)

    def _repeated(self, item: tuple[Symbol, ...], how: str) -> str:
        low, high = {"*": (0, None), "+": (1, None), "?": (0, 1)}.get(how) or _bounds(how)
        rest = self.rules.add([()])
        if high is None:
            self.rules.alternatives[rest].append((*item, rest))
        for _ in range((high or low) - low):
            rest = self.rules.add([(), (*item, rest)])
        return self.rules.add([(*(item * low), rest)])

    def _next(self) -> None:
        self.kind, self.value = "space", ""
        while self.kind == "space":
            if self._end == len(self._source):
                self.kind = "end"
                return
            match = _TOKENS.match(self._source, self._end)
            if match is None:
                raise ValueError(f"cannot read {self._source[self._end : self._end + 20]!r}")
            self._end, self.kind = match.end(), match.lastgroup or ""
            self.value = match[self.kind]


def _bounds(how: str) -> tuple[int, int | None]:
    low, comma, high = how[1:-1].partition(",")
    return int(low), int(high) if high else None if comma else int(low)


def _letters(text: str) -> list[str]:
    """Characters of a literal, escapes resolved."""
    return [_letter(match) for match in _LETTER.finditer(text)]


def _class(text: str) -> Letters:
    is_negated = text.startswith("^")
    found = list(_LETTER.finditer(text[is_negated:]))
    ranges, place = [], 0
    while place < len(found):
        is_range = place + 2 < len(found) and found[place + 1][0] == "-"
        ranges.append((_letter(found[place]), _letter(found[place + 2 if is_range else place])))
        place += 3 if is_range else 1
    return Letters(tuple(ranges), is_negated)


def _letter(match: re.Match[str]) -> str:
    code = match[1] or match[2]
    if code:
        return chr(int(code, 16))
    return match[4] if match[3] is None else _ESCAPES.get(match[3], match[3])
