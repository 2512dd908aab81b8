"""Keywords of numbers."""

from __future__ import annotations

from fractions import Fraction
from math import ceil, floor
from typing import Any

from thalweg.interfaces import shown
from thalweg.structured.lint.findings import Findings
from thalweg.structured.lint.limits import MAX_DECIMALS, MAX_MULTIPLE_OF, MAX_MULTIPLES_RANGE
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
    lower, upper = _range(schema, Fraction(1) if name == "integer" else Fraction(1, 10**MAX_DECIMALS))
    if lower is not None and upper is not None and lower > upper:
        given = " and ".join(f"{word} is {shown(schema[word])}" for word in _BOUNDS if word in schema)
        what = "integer" if name == "integer" else f"number of at most {MAX_DECIMALS} decimals"
        findings.refuse(path, f"admits no {what}: {given}")
    if "multipleOf" in schema:
        _check_multiple(schema["multipleOf"], name, lower, upper, path / "multipleOf", findings)
    return []


def _range(schema: dict[str, Any], unit: Fraction) -> tuple[Fraction | None, Fraction | None]:
    """Least and largest multiple of the unit that the bounds admit; None where there is no bound."""
    lower = [ceil(_exact(schema["minimum"]) / unit)] if "minimum" in schema else []
    if "exclusiveMinimum" in schema:
        lower.append(floor(_exact(schema["exclusiveMinimum"]) / unit) + 1)
    upper = [floor(_exact(schema["maximum"]) / unit)] if "maximum" in schema else []
    if "exclusiveMaximum" in schema:
        upper.append(ceil(_exact(schema["exclusiveMaximum"]) / unit) - 1)
    return (max(lower) * unit if lower else None), (min(upper) * unit if upper else None)


def _exact(value: float) -> Fraction:
    return Fraction(repr(value))


def _check_bound(value: Any, path: Path, findings: Findings, *, is_integer: bool) -> None:
    if isinstance(value, bool) or not isinstance(value, int | float):
        findings.refuse(path, f"is {shown(value)}; it must be a number")
    if is_integer and (value != int(value) or abs(value) > _MOST_OF_INTEGER):
        findings.refuse(path, f"is {shown(value)}; of an integer it must be a whole number within 64 bits")


def _check_multiple(
    value: Any, name: str, lower: Fraction | None, upper: Fraction | None, path: Path, findings: Findings
) -> None:
    if name == "number":
        findings.refuse(path, 'would be ignored: only integers are held to it; make the type "integer"')
    is_small = isinstance(value, int) and not isinstance(value, bool) and 1 <= value <= MAX_MULTIPLE_OF
    if not is_small:
        findings.refuse(path, f"is {shown(value)}; only integers from 1 to {MAX_MULTIPLE_OF} are enforced")
    if value == 1 or (lower is None and upper is None):
        return
    if lower is None or upper is None or upper - lower > MAX_MULTIPLES_RANGE:
        findings.refuse(
            path,
            f"is {value}, and would be ignored beside these bounds; it is enforced without any, or between a minimum "
            f"and a maximum that are at most {MAX_MULTIPLES_RANGE} apart",
        )
