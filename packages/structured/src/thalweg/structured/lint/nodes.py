"""The schemas of a document that wait to be checked."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any

from thalweg.structured.lint.findings import Findings
from thalweg.structured.lint.limits import MAX_SCHEMAS
from thalweg.structured.lint.paths import Path


@dataclass(frozen=True, slots=True)
class Node:
    """A schema, and where it stands."""

    path: Path
    schema: Any
    depth: int
    """Schemas around it, itself included, from the root or from where a reference led."""

    def child(self, schema: Any, *keys: str | int) -> Node:
        """A schema inside of this one."""
        path = self.path
        for key in keys:
            path = path / key
        return Node(path, schema, self.depth + 1)


class Nodes:
    """Each schema waits once, however many references lead to it."""

    def __init__(self, document: Any, root: Path, findings: Findings, is_strict: bool) -> None:
        self.document = document
        self.root = root
        self.findings = findings
        self.is_strict = is_strict
        self.waiting: list[Node] = []
        self._seen: set[int] = set()
        self._count = 0

    def add(self, node: Node) -> None:
        """Have it checked."""
        if id(node.schema) in self._seen and isinstance(node.schema, dict):
            return
        self._seen.add(id(node.schema))
        self.waiting.append(node)
        self._count += 1
        if self._count > MAX_SCHEMAS:
            self.findings.refuse(self.root, f"has more than {MAX_SCHEMAS} schemas")
