"""Pairs of least and most."""

from __future__ import annotations

from typing import Any

from thalweg.interfaces import shown
from thalweg.structured.lint.findings import Findings
from thalweg.structured.lint.limits import MAX_COUNT
from thalweg.structured.lint.paths import Path


def check_counts(
    schema: dict[str, Any], least: str, most: str, path: Path, findings: Findings
) -> tuple[int, int | None]:
    """The two numbers, 0 and None where they are not given. Refuses others than counts in their order."""
    for word in (least, most):
        value = schema.get(word, 0)
        is_count = isinstance(value, int) and not isinstance(value, bool) and 0 <= value <= MAX_COUNT
        if not is_count:
            findings.refuse(path / word, f"is {shown(value)}; it must be an integer from 0 to {MAX_COUNT}")
    lower, upper = schema.get(least, 0), schema.get(most)
    if upper is not None and lower > upper:
        findings.refuse(path / least, f"is {lower} and {most} is {upper}; nothing is that")
    return lower, upper
