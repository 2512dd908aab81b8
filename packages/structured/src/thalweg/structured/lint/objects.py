"""Keywords of objects."""

from __future__ import annotations

import re
from collections.abc import Iterable
from typing import Any

from thalweg.interfaces import shown
from thalweg.structured.lint.counts import check_counts
from thalweg.structured.lint.keywords import CONSTRAINTS, NEVER_OF_OBJECTS, OF_STRINGS
from thalweg.structured.lint.limits import MAX_REPETITION
from thalweg.structured.lint.nodes import Node, Nodes
from thalweg.structured.lint.regex import check_pattern
from thalweg.structured.lint.regex_tokens import has_branches
from thalweg.structured.lint.strings import check_string
from thalweg.structured.lint.values import check as check_values

_PLAIN_NAME = re.compile(r"[ !#-\[\]-~]*")
"""The library can tell such names from others."""
_LITERAL_START = re.compile(r"\^([A-Za-z0-9_@~:-]*)(?![?*{|])")


def check(node: Node, name: str, nodes: Nodes) -> list[Any]:
    """Have the properties checked; the schemas of those that every object has."""
    schema, path, findings = node.schema, node.path, nodes.findings
    for word, instead in NEVER_OF_OBJECTS.items():
        if word in schema:
            findings.refuse(path / word, f"would be ignored; {instead}")
    properties = _mapping(node, "properties", nodes)
    patterns = _mapping(node, "patternProperties", nodes)
    for key in properties:
        nodes.add(node.child(properties[key], "properties", key))
    for key in patterns:
        check_pattern(key, path / "patternProperties" / key, findings)
        nodes.add(node.child(patterns[key], "patternProperties", key))
    rest = _rest(node, nodes)
    if rest is not False:
        _check_spellings(node, properties, nodes)
    _check_overlaps(node, list(properties), list(patterns), rest, nodes)
    _check_names(node, rest, nodes)
    required = _required(node, properties, nodes)
    _check_number(node, len(properties), len(required), is_free=bool(patterns) or rest is not False, nodes=nodes)
    return [properties[key] for key in required]


def _mapping(node: Node, word: str, nodes: Nodes) -> dict[str, Any]:
    value = node.schema.get(word, {})
    if not isinstance(value, dict):
        nodes.findings.refuse(node.path / word, f"is {shown(value)}; it must be an object of schemas")
    return value


def _rest(node: Node, nodes: Nodes) -> Any:
    """The schema of properties that are not declared; False if there are none."""
    words = ("additionalProperties", "unevaluatedProperties")
    if not nodes.is_strict and words[0] not in node.schema and node.schema.get(words[1], True) is not True:
        nodes.findings.refuse(node.path / words[1], "would be ignored with strict=False; use additionalProperties")
    for word in words:
        if word in node.schema:
            rest = node.schema[word]
            if rest is not False:
                nodes.add(node.child(rest, word))
            return rest
    declares = {"properties", "patternProperties", "propertyNames", "minProperties", "maxProperties", "required"}
    return not nodes.is_strict or not declares & node.schema.keys()


def _check_spellings(node: Node, names: Iterable[str], nodes: Nodes) -> None:
    """A declared name must not pass for one that is not: it would have any value, or break out of its quotes."""
    for name in names:
        if not _PLAIN_NAME.fullmatch(name):
            nodes.findings.refuse(
                node.path / "properties" / name,
                "would not be held to its schema, as other properties are allowed beside it: then names must be ASCII "
                "without quotes, backslashes and control characters; set additionalProperties to false",
            )


def _required(node: Node, properties: dict[str, Any], nodes: Nodes) -> list[str]:
    names = node.schema.get("required", [])
    place = node.path / "required"
    if not isinstance(names, list) or not all(isinstance(name, str) for name in names):
        nodes.findings.refuse(place, f"is {shown(names)}; it must be a list of names")
    for index, name in enumerate(names):
        if name not in properties:
            nodes.findings.refuse(
                place / index, f"is {shown(name)}, which would be ignored: properties beside it does not declare it"
            )
    return list(dict.fromkeys(names))


def _check_overlaps(node: Node, names: list[str], patterns: list[str], rest: Any, nodes: Nodes) -> None:
    """A property that matches a pattern must match its schema, too; here each follows the first that it meets."""
    if not patterns:
        return
    place = node.path / "patternProperties"
    if rest is not False and {"additionalProperties", "unevaluatedProperties"} & node.schema.keys():
        nodes.findings.refuse(
            place, "would not hold for all properties that match it; beside it additionalProperties must be false"
        )
    if not names and len(patterns) == 1:
        return
    starts: list[str] = []
    for pattern in patterns:
        match = None if has_branches(pattern) else _LITERAL_START.match(pattern)
        start = match[1] if match else ""
        if not start:
            nodes.findings.refuse(
                place / pattern,
                "may match names that properties or other patterns are for; begin it with ^ and letters that they do "
                "not begin with",
            )
        starts.append(start)
    known = [*((name, "") for name in names), *zip(starts, patterns, strict=True)]
    _check_starts(sorted(known, key=lambda item: (item[0], not item[1])), node, nodes)


def _check_starts(known: list[tuple[str, str]], node: Node, nodes: Nodes) -> None:
    """known: names, and what patterns begin with, in order: what begins with another comes after it, next to it."""
    current: tuple[str, str] | None = None
    for text, pattern in known:
        if current is not None and text.startswith(current[0]):
            nodes.findings.refuse(
                node.path / "patternProperties" / current[1],
                f"may match {shown(text)}, which {'another pattern' if pattern else 'properties'} is for, too",
            )
        if pattern:
            current = text, pattern


def _check_names(node: Node, rest: Any, nodes: Nodes) -> None:
    """propertyNames: a schema of strings, which holds for the names that nothing else declares."""
    if "propertyNames" not in node.schema:
        return
    schema, path, findings = node.schema["propertyNames"], node.path / "propertyNames", nodes.findings
    for word in ("properties", "patternProperties"):
        if word in node.schema:
            findings.refuse(path, f"would be ignored beside {word}; leave it out")
    if rest is False and {"additionalProperties", "unevaluatedProperties"} & node.schema.keys():
        findings.refuse(path, "would let properties through that additionalProperties excludes; leave one of them out")
    if not isinstance(schema, dict):
        findings.refuse(path, f"is {shown(schema)}; it must be an object")
    for word in schema:
        if word in CONSTRAINTS and word not in {*OF_STRINGS, "enum", "type"}:
            findings.refuse(path / word, "would be ignored; names take pattern, format, lengths, or enum")
    if schema.get("type", "string") != "string":
        findings.refuse(path / "type", f"is {shown(schema['type'])}; names are strings")
    if "enum" in schema:
        check_values(Node(path, schema, 1), "enum", ("string",), findings)
    else:
        check_string(schema, path, findings)


def _check_number(node: Node, num_declared: int, num_required: int, *, is_free: bool, nodes: Nodes) -> None:
    least, most = check_counts(node.schema, "minProperties", "maxProperties", node.path, nodes.findings)
    place = node.path / "minProperties"
    if is_free and least > 1:
        nodes.findings.refuse(
            place, f"is {least}; one name written several times would count as so many, so it may be at most 1 here"
        )
    if not is_free and least > num_declared:
        nodes.findings.refuse(
            place,
            f"is {least} and {num_declared} properties are declared; declare more, or additionalProperties",
        )
    if most is not None and most < num_required:
        nodes.findings.refuse(node.path / "maxProperties", f"is {most} and {num_required} properties are required")
    if least * num_declared > MAX_REPETITION:
        nodes.findings.refuse(
            place, f"is {least} of {num_declared} properties; the product may be at most {MAX_REPETITION}"
        )
