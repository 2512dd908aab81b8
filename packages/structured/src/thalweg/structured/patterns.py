"""Patterns of JSON schemas, spelled so that the library gets them right inside of JSON strings.

It has two mistakes there, and this goes around them without a change of meaning: beside other letters than those of
ASCII '.' and the like let through what ends the string, and `(...)?` lets what is repeated at an end of the group come
without the rest of it.
"""

from __future__ import annotations

import json
import re
from collections.abc import Iterator
from typing import Any

from thalweg.structured.lint.regex_tokens import Token, tokens

_SCHEMAS_BY_NAME = ("properties", "patternProperties", "$defs", "definitions")
_ODD_IN_CLASS = re.compile("[^ -~]")
_ODD = re.compile(r"[^ -\\^-~]")
_VALUES = ("const", "enum", "default", "example", "examples")


def respelled(pattern: str) -> str:
    """A pattern of the same texts."""
    parts: list[str] = []
    before = ""
    for token in tokens(pattern):
        parts.append(_respelled_token(token, before))
        before = token.kind
    return "".join(parts)


def respelled_schema(schema: Any) -> Any:
    """The schema, changed in place: its patterns, and the names of patternProperties."""
    pending = [schema]
    while pending:
        item = pending.pop()
        if isinstance(item, list):
            pending += item
        elif isinstance(item, dict):
            _respell_members(item)
            for key, value in item.items():
                if key in _SCHEMAS_BY_NAME and isinstance(value, dict):
                    pending += value.values()
                elif key not in _VALUES:
                    pending.append(value)
    return schema


def respelled_source(source: str) -> str:
    """The text of a schema; text that is not JSON as it is."""
    if "attern" not in source and "\\u" not in source:
        return source
    try:
        return json.dumps(respelled_schema(json.loads(source)))
    except (ValueError, RecursionError):
        return source


def respelled_tag(source: str) -> str:
    """The text of a structural tag, with the schemas inside of it; text that is not JSON as it is."""
    if "json_schema" not in source and "\\u" not in source:
        return source
    try:
        tag = json.loads(source)
        for schema in _schemas_of(tag):
            respelled_schema(schema)
        return json.dumps(tag)
    except (ValueError, RecursionError):
        return source


def _schemas_of(tag: Any) -> Iterator[Any]:
    pending = [tag]
    while pending:
        item = pending.pop()
        if isinstance(item, list):
            pending += item
        elif isinstance(item, dict):
            is_schema = item.get("type") == "json_schema"
            if is_schema:
                yield item.get("json_schema")
            pending += [value for key, value in item.items() if not (is_schema and key == "json_schema")]


def _respell_members(schema: dict[str, Any]) -> None:
    if isinstance(schema.get("pattern"), str):
        schema["pattern"] = respelled(schema["pattern"])
    names = schema.get("patternProperties")
    if isinstance(names, dict):
        schema["patternProperties"] = {respelled(name): value for name, value in names.items()}


def _respelled_token(token: Token, before: str) -> str:
    if token.kind == "literal":
        return _ODD.sub(_spelled, token.text)
    if token.kind == "escape" and not token.text.isascii():
        return _ODD_IN_CLASS.sub(_spelled, token.text[1:])
    if token.kind == "class":
        return "[" + _ODD_IN_CLASS.sub(_spelled, token.text[1:])
    return "{0,1}" if token.text == "?" and before == "close" else token.text


def _spelled(match: re.Match[str]) -> str:
    return "\\]" if match[0] == "]" else f"\\u{{{ord(match[0]):x}}}"
