"""Grammars in EBNF: nesting and repetition. Their syntax is left to the grammar library, which names the place."""

from __future__ import annotations

import re

from thalweg.structured.lint.findings import Findings
from thalweg.structured.lint.limits import MAX_DEPTH, MAX_REPETITION
from thalweg.structured.lint.paths import Path

_TOKEN = re.compile(
    r'(?P<skip>#[^\n]*|"(?:[^"\\\n]|\\.)*"?|\[(?:[^\]\\\n]|\\.)*\]?)'
    r"|(?P<open>\()|(?P<close>\))|(?P<repeat>\{[\s0-9,]*\}?)"
    r"|(?P<name>[A-Za-z_][\w.-]*)(?P<defines>\s*::=)?"
)
_DIGITS = re.compile("[0-9]+")


def check_ebnf(grammar: str, path: Path, findings: Findings) -> None:
    """Refuse deep groups and large repetitions, those of a group inside of repeated groups multiplied."""
    bounds, last = [1], 1
    for match in _TOKEN.finditer(grammar):
        where = f"at character {match.start() + 1}"
        if match["open"]:
            if len(bounds) > MAX_DEPTH:
                findings.refuse(path, f"has groups nested deeper than {MAX_DEPTH} {where}")
            bounds.append(1)
            last = 1
        elif match["close"]:
            last = bounds.pop() if len(bounds) > 1 else 1
            bounds[-1] = max(bounds[-1], last)
        elif match["repeat"]:
            last *= max([1, *(_number(digits) for digits in _DIGITS.findall(match["repeat"]))])
            bounds[-1] = max(bounds[-1], last)
            if last > MAX_REPETITION:
                findings.refuse(path, f"repeats {last} times {where}; at most {MAX_REPETITION} times are accepted")
        else:
            last = 1
            if match["defines"]:
                bounds = [1]


def _number(digits: str) -> int:
    return int(digits) if len(digits) <= 9 else 10**9
