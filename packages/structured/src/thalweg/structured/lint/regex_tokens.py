"""Regular expressions as a stream of tokens. Nothing here runs one."""

from __future__ import annotations

import re
from collections.abc import Iterator
from dataclasses import dataclass

_TOKEN = re.compile(
    r"(?P<literal>[^\\\[(){|*+?^$.]+)"
    r"|(?P<escape>\\(?:u\{[0-9A-Fa-f]+\}|u[0-9A-Fa-f]{4}|x[0-9A-Fa-f]{2}|c[A-Za-z]|0[0-9]*|[\s\S]?))"
    r"|(?P<class>\[\^?(?:[^\\\]]|\\[\s\S])*\]?)"
    r"|(?P<open>\((?:\?(?:<[=!]|<\w+>|[:=!]|[^)]?))?)"
    r"|(?P<close>\))"
    r"|(?P<or>\|)"
    r"|(?P<repeat>[*+?]|\{[0-9]+(?:,[0-9]*)?\})"
    r"|(?P<anchor>[\^$])"
    r"|(?P<dot>\.)"
    r"|(?P<brace>\{)"
)


@dataclass(frozen=True, slots=True)
class Token:
    """A piece of an expression: its kind is the name of a group above."""

    kind: str
    text: str
    place: int


def tokens(pattern: str) -> Iterator[Token]:
    """All of the pattern, in order."""
    for match in _TOKEN.finditer(pattern):
        yield Token(match.lastgroup or "", match.group(), match.start())


def has_branches(pattern: str) -> bool:
    """Whether the whole of it is several alternatives."""
    depth = 0
    for token in tokens(pattern):
        depth += (token.kind == "open") - (token.kind == "close")
        if token.kind == "or" and depth <= 0:
            return True
    return False


_CLASS_ITEM = re.compile(r"\\(?:u\{[0-9A-Fa-f]+\}|u[0-9A-Fa-f]{4}|x[0-9A-Fa-f]{2}|c[A-Za-z]|0[0-9]*|[\s\S])|[\s\S]")
_CONTROL = {"n": 10, "t": 9, "r": 13, "f": 12, "v": 11, "a": 7, "e": 27, "b": 8, "0": 0}


def class_items(text: str) -> Iterator[str]:
    """The characters and escapes between the brackets of a class, without the ^ that negates it."""
    start = 2 if text.startswith("[^") else 1
    for match in _CLASS_ITEM.finditer(text, start, len(text) - 1):
        yield match.group()


def character_of(item: str) -> int | None:
    """The code point that a character or escape stands for; None for those that stand for several."""
    if not item.startswith("\\"):
        return ord(item)
    name = item[1:2]
    if name in "ux" and len(item) > 2:
        return int(item[2:].strip("{}"), 16)
    if name == "c" and len(item) > 2:
        return ord(item[2]) % 32
    if name in _CONTROL:
        return _CONTROL[name]
    return None if name in "dDwWsS" else ord(name)


def class_ranges(text: str) -> Iterator[tuple[str, str]]:
    """First and last item of each range of a class; the same twice for a single one."""
    items = list(class_items(text))
    place = 0
    while place < len(items):
        is_range = place + 2 < len(items) and items[place + 1] == "-"
        yield items[place], items[place + 2 if is_range else place]
        place += 3 if is_range else 1
