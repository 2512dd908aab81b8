"""JSON from outside, read with limits: what it may contain is stricter than what Python reads."""

from __future__ import annotations

import json
import math
import re
from typing import Any, NoReturn

from thalweg.interfaces import RequestError, shown
from thalweg.structured.lint.limits import MAX_JSON_DEPTH

_STRING_OR_BRACKET = re.compile(r'"[^"\\]*(?:\\.[^"\\]*)*"|[\[{]|[\]}]', re.DOTALL)
_LONGEST_NUMBER = 400
_SURROGATE = re.compile("[\ud800-\udfff]")


class _Unreadable(ValueError):
    pass


def read_json(text: str, kind: str) -> Any:
    """What the text says. Raises RequestError for what is not JSON, and for what has two readings.

    Those are a key that an object has twice, numbers that no float holds, and text that is not Unicode.
    """
    try:
        _check_depth(text)
        value = json.loads(
            text, object_pairs_hook=_object, parse_constant=_constant, parse_int=_integer, parse_float=_float
        )
    except (ValueError, RecursionError) as error:
        raise RequestError(f"invalid grammar: {kind}: the source is not JSON: {error}") from None
    if "\\u" in text:
        _check_strings(value, kind)
    return value


def _check_depth(text: str) -> None:
    depth = 0
    for match in _STRING_OR_BRACKET.finditer(text):
        first = text[match.start()]
        if first in "[{":
            depth += 1
            if depth > MAX_JSON_DEPTH:
                raise _Unreadable(f"arrays and objects are nested deeper than {MAX_JSON_DEPTH}")
        elif first in "]}":
            depth -= 1


def _object(pairs: list[tuple[str, Any]]) -> dict[str, Any]:
    result = dict(pairs)
    if len(result) < len(pairs):
        seen: set[str] = set()
        for key, _ in pairs:
            if key in seen:
                raise _Unreadable(f"an object has the key {shown(key)} twice")
            seen.add(key)
    return result


def _constant(text: str) -> NoReturn:
    raise _Unreadable(f"{text} is no number of JSON")


def _integer(text: str) -> int:
    if len(text) > _LONGEST_NUMBER:
        raise _Unreadable(f"a number has {len(text)} digits")
    return int(text)


def _float(text: str) -> float:
    value = float(text)
    if math.isinf(value):
        raise _Unreadable(f"the number {shown(text)} is too large")
    return value


def _check_strings(value: Any, kind: str) -> None:
    """Escapes can spell half of a character."""
    pending = [value]
    while pending:
        item = pending.pop()
        if isinstance(item, str):
            if _SURROGATE.search(item):
                raise RequestError(f"invalid grammar: {kind}: the string {shown(item)} is not Unicode text")
        elif isinstance(item, list):
            pending += item
        elif isinstance(item, dict):
            pending += item.keys()
            pending += item.values()
