"""anyOf, oneOf and allOf."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from typing import Any

from thalweg.interfaces import shown
from thalweg.structured.lint.keywords import TYPES
from thalweg.structured.lint.nodes import Node, Nodes
from thalweg.structured.lint.references import find
from thalweg.structured.lint.values import canonical, types_of_value

_LONGEST_CHAIN = 8
_MOST_NAMES = 16


def check(node: Node, chooser: str, types: tuple[str, ...], nodes: Nodes) -> list[list[Any]]:
    """Have the branches checked; what a value of each way needs."""
    branches, place, findings = node.schema[chooser], node.path / chooser, nodes.findings
    if not isinstance(branches, list) or not branches:
        findings.refuse(place, f"is {shown(branches)}; it must be a list of at least one schema")
    if chooser == "allOf" and len(branches) > 1:
        findings.refuse(place, "has several members, and any value would match; merge them into one schema")
    resolved = [_resolve(branch, nodes) for branch in branches]
    if types:
        _check_types(types, [_types(branch) for branch in resolved], node, chooser, nodes)
    if chooser == "oneOf" and len(branches) > 1 and not _is_disjoint(resolved):
        findings.warn(place, "has branches that may overlap; a value that matches several of them is not excluded")
    for index, branch in enumerate(branches):
        nodes.add(node.child(branch, chooser, index))
    return [[branch] for branch in branches]


def _check_types(types: tuple[str, ...], found: Sequence[set[str]], node: Node, chooser: str, nodes: Nodes) -> None:
    wide = {*types, "integer"} if "number" in types else set(types)
    for index, branch_types in enumerate(found):
        if not branch_types <= wide:
            nodes.findings.refuse(
                node.path / "type",
                f"would be ignored beside {chooser}, whose branch {index} admits other types; "
                "put the type into every branch",
            )


def _resolve(branch: Any, nodes: Nodes) -> Any:
    """The schema that a chain of references leads to; itself if it leads nowhere."""
    for _ in range(_LONGEST_CHAIN):
        if not isinstance(branch, dict) or not isinstance(branch.get("$ref"), str):
            break
        found = find(branch["$ref"], nodes.document, nodes.root) if branch["$ref"].startswith("#") else None
        if found is None:
            break
        branch = found[0]
    return branch


def _types(branch: Any) -> set[str]:
    """The types that a branch admits; all of them where it does not say."""
    if isinstance(branch, dict):
        if "const" in branch:
            return types_of_value(branch["const"]) - {"number"} or {"number"}
        if isinstance(branch.get("enum"), list):
            return {name for value in branch["enum"] for name in types_of_value(value) - {"number"} or {"number"}}
        declared = branch.get("type")
        if isinstance(declared, str):
            return {declared}
        if isinstance(declared, list) and all(isinstance(name, str) for name in declared):
            return set(declared)
    return set(TYPES)


def _is_disjoint(branches: Sequence[Any]) -> bool:
    """Whether no value matches two of them, as far as types, values and required constants tell."""
    by_type: dict[str, list[Any]] = {}
    for branch in branches:
        types = _types(branch)
        for name in types - {"integer"} | ({"number"} if "integer" in types else set()):
            by_type.setdefault(name, []).append(branch)
    return all(len(group) == 1 or _differ(group) for group in by_type.values())


def _differ(group: Sequence[Any]) -> bool:
    """Whether branches of one type are told apart by their values, or by those of a property that they require."""
    written = [_written(branch) for branch in group]
    if all(written):
        return _are_distinct(written)
    names: list[str] | None = None
    for branch in group:
        own = list(_required_constants(branch)) if isinstance(branch, dict) else []
        names = own if names is None else [name for name in names if name in set(own)]
    return any(
        _are_distinct([_written(branch["properties"][name]) for branch in group])
        for name in (names or ())[:_MOST_NAMES]
    )


def _required_constants(branch: dict[str, Any]) -> Iterator[str]:
    """Names of properties that a branch requires to have one of a few values."""
    required, properties = branch.get("required"), branch.get("properties")
    if isinstance(required, list) and isinstance(properties, dict):
        for name in required:
            if isinstance(name, str) and _written(properties.get(name)):
                yield name


def _written(schema: Any) -> list[str]:
    """The values of const or enum; none for another schema."""
    if isinstance(schema, dict) and "const" in schema:
        return [canonical(schema["const"])]
    if isinstance(schema, dict) and isinstance(schema.get("enum"), list):
        return list(dict.fromkeys(map(canonical, schema["enum"])))
    return []


def _are_distinct(written: Sequence[Sequence[str]]) -> bool:
    values = [value for branch in written for value in branch]
    return len(set(values)) == len(values)
