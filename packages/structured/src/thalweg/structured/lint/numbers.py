"""Keywords of numbers."""

from __future__ import annotations

import math
from typing import Any

from thalweg.interfaces import shown
from thalweg.structured.limits import MAX_MULTIPLE_OF, MAX_MULTIPLES_RANGE
from thalweg.structured.lint.findings import Findings
from thalweg.structured.lint.nodes import Node, Nodes
from thalweg.structured.lint.paths import Path

_BOUNDS = ("minimum", "exclusiveMinimum", "maximum", "exclusiveMaximum")
_MOST_OF_INTEGER = 2**63 - 1


def check(node: Node, name: str, nodes: Nodes) -> list[Any]:
    """Of a schema of integers, or of numbers."""
    schema, path, findings = node.schema, node.path, nodes.findings
    for word in _BOUNDS:
        if word in schema:
            _check_bound(schema[word], path / word, findings, is_integer=name == "integer")
    step = 1 if name == "integer" else 0
    lower = max(schema.get("minimum", -math.inf), schema.get("exclusiveMinimum", -math.inf) + step)
    upper = min(schema.get("maximum", math.inf), schema.get("exclusiveMaximum", math.inf) - step)
    is_open = not step and lower == upper and lower in (schema.get("exclusiveMinimum"), schema.get("exclusiveMaximum"))
    if lower > upper or is_open:
        given = " and ".join(f"{word} is {shown(schema[word])}" for word in _BOUNDS if word in schema)
        findings.refuse(path, f"admits no number: {given}")
    if "multipleOf" in schema:
        _check_multiple(schema["multipleOf"], name, lower, upper, path / "multipleOf", findings)
    return []


def _check_bound(value: Any, path: Path, findings: Findings, *, is_integer: bool) -> None:
    if isinstance(value, bool) or not isinstance(value, int | float):
        findings.refuse(path, f"is {shown(value)}; it must be a number")
    if is_integer and (value != int(value) or abs(value) > _MOST_OF_INTEGER):
        findings.refuse(path, f"is {shown(value)}; of an integer it must be a whole number within 64 bits")


def _check_multiple(value: Any, name: str, lower: float, upper: float, path: Path, findings: Findings) -> None:
    if name == "number":
        findings.refuse(path, 'would be ignored: only integers are held to it; make the type "integer"')
    is_small = isinstance(value, int) and not isinstance(value, bool) and 1 <= value <= MAX_MULTIPLE_OF
    if not is_small:
        findings.refuse(path, f"is {shown(value)}; only integers from 1 to {MAX_MULTIPLE_OF} are enforced")
    if value > 1 and math.isinf(lower) and math.isinf(upper):
        return
    if value > 1 and upper - lower > MAX_MULTIPLES_RANGE:
        findings.refuse(
            path,
            f"is {value}, and would be ignored beside these bounds; it is enforced without any, or between a minimum "
            f"and a maximum that are at most {MAX_MULTIPLES_RANGE} apart",
        )
