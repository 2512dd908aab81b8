"""JSON schemas: every schema that can be reached from the root, each once."""

from __future__ import annotations

from typing import Any

from thalweg.interfaces import GrammarSpec, shown
from thalweg.structured.lint import arrays, branches, numbers, objects, strings, values
from thalweg.structured.lint.endless import Endings
from thalweg.structured.lint.findings import Findings
from thalweg.structured.lint.keywords import (
    ANNOTATIONS,
    CHOOSERS,
    CONSTRAINTS,
    IMPLY_ARRAY,
    IMPLY_OBJECT,
    NEVER,
    TYPES,
)
from thalweg.structured.lint.limits import MAX_COUNT, MAX_DEPTH
from thalweg.structured.lint.nodes import Node, Nodes
from thalweg.structured.lint.paths import ROOT, Path
from thalweg.structured.lint.references import target_of
from thalweg.structured.lint.texts import read_json

_CHECKS = {
    "string": strings.check,
    "integer": numbers.check,
    "number": numbers.check,
    "array": arrays.check,
    "object": objects.check,
}


def check_schema_text(spec: GrammarSpec, findings: Findings) -> None:
    """Of a request of kind json."""
    if (spec.max_whitespace or 0) > MAX_COUNT:
        findings.refuse(ROOT, f"has max_whitespace {shown(spec.max_whitespace)}; at most {MAX_COUNT} is accepted")
    check_schema(read_json(spec.source, spec.kind), ROOT, findings, is_strict=spec.strict)


def check_schema(schema: Any, root: Path, findings: Findings, *, is_strict: bool) -> None:
    """Refuse what of a schema is not enforced, and what contradicts itself; root: where the schema stands."""
    nodes = Nodes(schema, root, findings, is_strict)
    endings = Endings()
    nodes.add(Node(root, schema, 1))
    while nodes.waiting:
        node = nodes.waiting.pop()
        if node.depth > MAX_DEPTH:
            findings.refuse(node.path, f"is nested deeper than {MAX_DEPTH} schemas; use $ref, or a flatter schema")
        endings.add(node, _check_node(node, nodes))
    endless = endings.endless()
    if endless is not None:
        findings.refuse(endless.path, "is never complete: whatever is chosen, it contains itself again")


def _check_node(node: Node, nodes: Nodes) -> list[list[Any]]:
    """The ways to complete a value of it: for each the schemas that need a value then."""
    schema, findings = node.schema, nodes.findings
    if schema is True:
        return [[]]
    if schema is False:
        findings.refuse(node.path, "is false, which no value matches")
    if not isinstance(schema, dict):
        findings.refuse(node.path, f"is {shown(schema)}; a schema must be an object or a bool")
    _check_words(node, nodes)
    types = types_of(node, findings)
    chooser = next((word for word in CHOOSERS if word in schema), None)
    if chooser in ("const", "enum"):
        values.check(node, chooser, types, findings)
        return [[]]
    if chooser is not None:
        return _check_chooser(node, chooser, types, nodes)
    ways: list[list[Any]] = []
    for name in types:
        check = _CHECKS.get(name)
        ways.append([] if check is None else check(node, name, nodes))
    return ways or [[]]


def _check_words(node: Node, nodes: Nodes) -> None:
    for word in node.schema:
        if word in NEVER:
            nodes.findings.refuse(node.path / word, f"would be ignored; {NEVER[word]}")
        if word not in CONSTRAINTS and word not in ANNOTATIONS and not word.startswith("x-"):
            nodes.findings.warn(node.path / word, "is no keyword of JSON Schema, and means nothing")
    if "$id" in node.schema and node.schema is not nodes.document:
        nodes.findings.refuse(node.path / "$id", "would be ignored, and with it where references below it lead to")


def types_of(node: Node, findings: Findings) -> tuple[str, ...]:
    """The types that a schema declares, or is taken to mean; none if it leaves them open."""
    schema = node.schema
    if "type" in schema:
        declared = schema["type"]
        types = declared if isinstance(declared, list) else [declared]
        for name in types:
            if name not in TYPES:
                findings.refuse(node.path / "type", f"is {shown(declared)}; it must name some of {', '.join(TYPES)}")
        if not types:
            findings.refuse(node.path / "type", "is empty; it must name a type")
        return tuple(dict.fromkeys(types))
    if any(word in schema for word in CHOOSERS):
        return ()
    if any(word in schema for word in IMPLY_OBJECT):
        return ("object",)
    if any(word in schema for word in IMPLY_ARRAY):
        return ("array",)
    word = next((word for word in schema if word in CONSTRAINTS), None)
    if word is not None:
        findings.refuse(node.path / word, "would be ignored; the schema needs a type beside it")
    return ()


def _check_chooser(node: Node, chooser: str, types: tuple[str, ...], nodes: Nodes) -> list[list[Any]]:
    allowed = {chooser, "type"} if chooser != "$ref" else {chooser}
    for word in node.schema:
        if word in CONSTRAINTS and word not in allowed:
            where = "the branches" if chooser != "$ref" else "the schema that it leads to"
            nodes.findings.refuse(node.path / word, f"would be ignored beside {chooser}; put it into {where}")
    if chooser == "$ref":
        target, path = target_of(node, nodes)
        nodes.add(Node(path, target, 1))
        return [[target]]
    return branches.check(node, chooser, types, nodes)
