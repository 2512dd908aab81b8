"""Keywords of strings."""

from __future__ import annotations

from typing import Any

from thalweg.interfaces import shown
from thalweg.structured.lint.counts import check_counts
from thalweg.structured.lint.findings import Findings
from thalweg.structured.lint.keywords import FORMATS
from thalweg.structured.lint.nodes import Node, Nodes
from thalweg.structured.lint.paths import Path
from thalweg.structured.lint.regex import check_pattern


def check(node: Node, name: str, nodes: Nodes) -> list[Any]:
    """Of a schema of strings."""
    check_string(node.schema, node.path, nodes.findings)
    return []


def check_string(schema: dict[str, Any], path: Path, findings: Findings) -> None:
    """Refuse what is not enforced: of format, pattern and the lengths the first one decides alone."""
    check_counts(schema, "minLength", "maxLength", path, findings)
    kind, pattern = schema.get("format"), schema.get("pattern")
    if kind is not None and not isinstance(kind, str):
        findings.refuse(path / "format", f"is {shown(kind)}; it must be a text")
    decides = "format" if kind in FORMATS else "pattern" if "pattern" in schema else None
    if kind is not None and kind not in FORMATS:
        findings.warn(path / "format", f"is {shown(kind)}, which is not enforced")
    for word in ("pattern", "minLength", "maxLength"):
        if decides is not None and word in schema and word != decides:
            findings.refuse(path / word, f"would be ignored beside {decides}; put both into one pattern")
    if "pattern" in schema:
        if not isinstance(pattern, str):
            findings.refuse(path / "pattern", f"is {shown(pattern)}; it must be a text")
        check_pattern(pattern, path / "pattern", findings)
