"""Structural tags: the schemas, expressions and grammars inside of them, and how deep and how often they stand."""

from __future__ import annotations

from typing import Any

from thalweg.interfaces import GrammarSpec, shown
from thalweg.structured.lint.ebnf import check_ebnf
from thalweg.structured.lint.findings import Findings
from thalweg.structured.lint.limits import MAX_DEPTH, MAX_REPETITION
from thalweg.structured.lint.paths import ROOT, Path
from thalweg.structured.lint.regex import check_regex
from thalweg.structured.lint.schema import check_schema
from thalweg.structured.lint.texts import read_json

_SOURCES = {"json_schema": "json_schema", "regex": "pattern", "grammar": "grammar"}
"""Type of a format -> where its source stands."""


def check_tag(spec: GrammarSpec, findings: Findings) -> None:
    """Refuse what the sources inside of it would be refused for; its own form is left to the grammar library."""
    document = read_json(spec.source, spec.kind)
    if not isinstance(document, dict):
        findings.refuse(ROOT, f"is {shown(document)}; it must be an object")
    pending: list[tuple[Path, Any, int, int]] = [(ROOT, document, 0, 1)]
    while pending:
        path, value, depth, times = pending.pop()
        if isinstance(value, list):
            pending += [(path / index, item, depth, times) for index, item in enumerate(value)]
        elif isinstance(value, dict):
            kind = value.get("type")
            if isinstance(kind, str):
                depth += 1
                times *= _repetition(value)
                _check_format(value, path, depth, times, findings)
            skipped = _SOURCES.get(kind) if isinstance(kind, str) else None
            pending += [(path / key, item, depth, times) for key, item in value.items() if key != skipped]


def _repetition(value: dict[str, Any]) -> int:
    most = value.get("max")
    return max(most, 1) if value["type"] == "repeat" and isinstance(most, int) else 1


def _check_format(value: dict[str, Any], path: Path, depth: int, times: int, findings: Findings) -> None:
    if depth > MAX_DEPTH:
        findings.refuse(path, f"is nested deeper than {MAX_DEPTH} formats")
    if times > MAX_REPETITION:
        findings.refuse(path, f"repeats {shown(times)} times with those around it; at most {MAX_REPETITION} do")
    kind = value["type"]
    source = value.get(_SOURCES.get(kind, ""))
    if kind == "json_schema" and source is not None:
        check_schema(source, path / "json_schema", findings, is_strict=True)
    elif kind == "regex" and isinstance(source, str):
        check_regex(source, path / "pattern", findings)
    elif kind == "grammar" and isinstance(source, str) and value.get("syntax", "ebnf") == "ebnf":
        check_ebnf(source, path / "grammar", findings)
