"""const and enum: the values that are written out."""

from __future__ import annotations

import json
from typing import Any

from thalweg.interfaces import shown
from thalweg.structured.lint.findings import Findings
from thalweg.structured.lint.keywords import CONSTRAINTS
from thalweg.structured.lint.limits import MAX_CHOICES
from thalweg.structured.lint.nodes import Node
from thalweg.structured.lint.paths import Path

_ALLOWED = ("const", "enum", "type")
_LEAST, _MOST = -(2**63), 2**63 - 1


def check(node: Node, chooser: str, types: tuple[str, ...], findings: Findings) -> None:
    """Refuse values that are not of the types, that are not written exactly, and constraints that they ignore."""
    schema, path = node.schema, node.path
    for word in schema:
        if word in CONSTRAINTS and word not in _ALLOWED:
            findings.refuse(path / word, f"would be ignored beside {chooser}; leave out the values that it excludes")
    if "enum" in schema:
        _check_enum(schema["enum"], types, path / "enum", findings)
    if "const" not in schema:
        return
    _check_value(schema["const"], types, path / "const", findings)
    if "enum" in schema and canonical(schema["const"]) not in set(map(canonical, schema["enum"])):
        findings.refuse(path / "const", f"is {shown(schema['const'])}, which is not in the enum beside it")


def _check_enum(choices: Any, types: tuple[str, ...], path: Path, findings: Findings) -> None:
    if not isinstance(choices, list) or not choices:
        findings.refuse(path, f"is {shown(choices)}; it must be a list of at least one value")
    if len(choices) > MAX_CHOICES:
        findings.refuse(path, f"has {len(choices)} values; at most {MAX_CHOICES} are accepted")
    for index, value in enumerate(choices):
        _check_value(value, types, path / index, findings)


def _check_value(value: Any, types: tuple[str, ...], path: Path, findings: Findings) -> None:
    if types and not types_of_value(value) & set(types):
        findings.refuse(path, f"is {shown(value)}, which is not of type {' or '.join(types)}")
    pending = [value]
    while pending:
        item = pending.pop()
        if isinstance(item, int) and not _LEAST <= item <= _MOST:
            findings.refuse(path, f"has the integer {shown(item)}; integers are exact from -2**63 to 2**63 - 1")
        if isinstance(item, list):
            pending += item
        elif isinstance(item, dict):
            pending += item.values()


def types_of_value(value: Any) -> set[str]:
    """The types of JSON Schema that a value has: a whole number is also an integer."""
    if value is None:
        return {"null"}
    if isinstance(value, bool):
        return {"boolean"}
    if isinstance(value, str):
        return {"string"}
    if isinstance(value, int | float):
        return {"number", "integer"} if value == int(value) else {"number"}
    return {"array"} if isinstance(value, list) else {"object"}


def canonical(value: Any) -> str:
    """Equal for values that JSON Schema calls equal, and only for them."""
    return json.dumps(_normal(value), sort_keys=True)


def _normal(value: Any) -> Any:
    if isinstance(value, float) and value == int(value):
        return int(value)
    if isinstance(value, list):
        return [_normal(item) for item in value]
    return {key: _normal(item) for key, item in value.items()} if isinstance(value, dict) else value
