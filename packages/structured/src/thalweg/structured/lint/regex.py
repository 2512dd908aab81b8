"""Regular expressions: what is not supported, what is silently ignored, and what grows too large."""

from __future__ import annotations

import re
from dataclasses import dataclass

from thalweg.interfaces import shown
from thalweg.structured.lint.findings import Findings
from thalweg.structured.lint.limits import MAX_DEPTH, MAX_PIECES, MAX_REPETITION
from thalweg.structured.lint.paths import Path
from thalweg.structured.lint.regex_tokens import Token, character_of, class_items, class_ranges, tokens

_ESCAPES = "dDwWsSnrtfvae0"
_UNSUPPORTED = {"b": "a word boundary", "B": "a word boundary", "p": "a Unicode class", "P": "a Unicode class"}
_AROUND = ("(?=", "(?!", "(?<=", "(?<!")
_ESCAPED_BY_JSON = re.compile(r'[\x00-\x1f"\\]')
_NAMED_GROUP = re.compile(r"\(\?<\w+>")


@dataclass(slots=True)
class _Group:
    """An open parenthesis, or the whole expression."""

    begins: bool
    """Nothing of the text comes before it."""
    at_start: bool
    """Nothing of the text comes before here."""
    bound: int = 1
    """Product of the bounds of what is repeated inside, the largest."""
    last: int = 1
    """The same of the newest piece."""
    end_anchor: int | None = None
    """Where a $ stands that must be the last in its branch."""
    end_anchors: int | None = None
    """The same of any of its branches."""


class _Walk:
    """One pass over an expression."""

    def __init__(self, pattern: str, path: Path, findings: Findings, *, in_json: bool) -> None:
        self.pattern = pattern
        self.path = path
        self.findings = findings
        self.in_json = in_json
        self.groups = [_Group(begins=True, at_start=True)]

    def run(self) -> None:
        steps = {
            "literal": self._literal,
            "escape": self._escape,
            "class": self._class,
            "open": self._open,
            "close": self._close,
            "or": self._or,
            "repeat": self._repeat,
            "anchor": self._anchor,
            "dot": self._dot,
            "brace": self._piece,
        }
        for token in tokens(self.pattern):
            self.findings.count_piece(self.path)
            steps[token.kind](token)
        if len(self.groups) > 1:
            self._refuse(Token("", "(", len(self.pattern)), "is not closed by )")

    def _refuse(self, token: Token, text: str) -> None:
        self.findings.refuse(self.path, f"has {shown(token.text)} at character {token.place + 1}, which {text}")

    def _piece(self, token: Token, bound: int = 1) -> None:
        """Something that takes room in the text."""
        group = self.groups[-1]
        if group.end_anchor is not None:
            self._misplaced("$", group.end_anchor)
            group.end_anchor = None
        group.at_start = False
        group.last = bound
        group.bound = max(group.bound, bound)

    def _misplaced(self, anchor: str, place: int) -> None:
        text = f"has {anchor!r} at character {place + 1}, in the middle of the text, where it"
        if self.in_json:
            self.findings.refuse(self.path, f"{text} would be ignored; take it away")
        self.findings.warn(self.path, f"{text} is ignored")

    def _literal(self, token: Token) -> None:
        found = _ESCAPED_BY_JSON.search(token.text) if self.in_json else None
        if found:
            self._check_plain(token, ord(found.group()))
        self._piece(token)

    def _check_plain(self, token: Token, code: int) -> None:
        if _ESCAPED_BY_JSON.match(chr(code)):
            self._refuse(token, f"asks for {chr(code)!r}: JSON writes it with an escape, which no pattern produces")

    def _escape(self, token: Token) -> None:
        self._check_escape(token, token.text)
        code = character_of(token.text)
        if self.in_json and code is not None:
            self._check_plain(token, code)
        self._piece(token)

    def _check_escape(self, token: Token, item: str) -> None:
        name = item[1:2]
        if not name:
            self._refuse(token, "escapes nothing")
        if name in _UNSUPPORTED:
            self._refuse(token, f"is {_UNSUPPORTED[name]}, and that is not supported")
        if name in "123456789" or (name == "0" and len(item) > 2):
            self._refuse(token, "is a reference to a group or an octal number; neither is supported")
        if name in "uxc" and len(item) == 2:
            self._refuse(token, "is not followed by the digits of a character")
        if name in "ux" and not _is_character(int(item[2:].strip("{}"), 16)):
            self._refuse(token, "is no character of Unicode")
        if name.isascii() and name.isalpha() and name not in _ESCAPES + "uxc":
            self._refuse(token, "is an escape without a meaning here")

    def _class(self, token: Token) -> None:
        if token.text in ("[]", "[^]") or not token.text.endswith("]"):
            self._refuse(token, "is not a class of characters closed by ], with at least one; write ] as \\]")
        if "[[:" in token.text:
            self._refuse(token, "is a named class, and these are not supported")
        if len(token.text) > MAX_PIECES:
            self._refuse(token, f"is longer than {MAX_PIECES} characters")
        items = list(class_items(token.text))
        for item in items:
            if item.startswith("\\") and item != "\\b":
                self._check_escape(token, item)
        if self.in_json and not token.text.startswith("[^"):
            self._check_ranges(token)
        self._piece(token)

    def _check_ranges(self, token: Token) -> None:
        """A range leaves out what JSON escapes, unless it begins with it or there is nothing else in the class."""
        codes = [character_of(first) for first, _ in class_ranges(token.text)]
        for code in codes:
            if code is not None and (code < 0x20 or len(codes) == 1):
                self._check_plain(token, code)
        if all(code is not None and _ESCAPED_BY_JSON.match(chr(code)) for code in codes):
            self._check_plain(token, codes[0] or 0)

    def _dot(self, token: Token) -> None:
        if not self.in_json:
            self.findings.warn(self.path, "has '.', which matches the ends of lines, too")
        self._piece(token)

    def _open(self, token: Token) -> None:
        if token.text in _AROUND:
            self._refuse(token, "looks at the text around it; that is not supported")
        if token.text.startswith("(?") and token.text != "(?:" and not _NAMED_GROUP.fullmatch(token.text):
            self._refuse(token, "is not supported; groups are ( ), (?: ) and (?<name> )")
        if len(self.groups) > MAX_DEPTH:
            self._refuse(token, f"is nested deeper than {MAX_DEPTH}")
        parent = self.groups[-1]
        self.groups.append(_Group(begins=parent.at_start, at_start=parent.at_start))

    def _close(self, token: Token) -> None:
        if len(self.groups) == 1:
            self._refuse(token, "closes nothing")
        group = self.groups.pop()
        self._piece(token, group.bound)
        self.groups[-1].end_anchor = group.end_anchor if group.end_anchor is not None else group.end_anchors

    def _or(self, token: Token) -> None:
        group = self.groups[-1]
        if group.end_anchor is not None:
            group.end_anchors = group.end_anchor
        group.end_anchor = None
        group.at_start = group.begins

    def _repeat(self, token: Token) -> None:
        group = self.groups[-1]
        if group.end_anchor is not None and token.text != "?":
            self._misplaced("$", group.end_anchor)
        if token.text[0] != "{":
            return
        lower, _, upper = token.text[1:-1].partition(",")
        digits = upper or lower
        times = int(digits) if len(digits) <= 9 else 10**9
        group.last *= max(times, 1)
        group.bound = max(group.bound, group.last)
        if group.last > MAX_REPETITION:
            self._refuse(token, f"makes {group.last} repetitions with those around it; at most {MAX_REPETITION} do")

    def _anchor(self, token: Token) -> None:
        group = self.groups[-1]
        if token.text == "$":
            group.end_anchor = token.place
        elif not group.at_start or group.end_anchor is not None:
            self._misplaced("^", token.place)


def _is_character(code: int) -> bool:
    return code <= 0x10FFFF and not 0xD800 <= code <= 0xDFFF


def check_regex(pattern: str, path: Path, findings: Findings) -> None:
    """Of a request: the whole output matches it."""
    if "\0" in pattern:
        findings.refuse(path, "has a null character; write it as \\x00")
    _Walk(pattern, path, findings, in_json=False).run()


def check_pattern(pattern: str, path: Path, findings: Findings) -> None:
    """Of a schema: text inside a JSON string matches it. JSON Schema searches, here it is the whole string."""
    _Walk(pattern, path, findings, in_json=True).run()
    if not (pattern.startswith("^") and pattern.endswith("$")):
        findings.warn(path, "is not anchored with ^ and $; the whole string will match it, not a part of it")
