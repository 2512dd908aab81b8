"""Keywords of arrays."""

from __future__ import annotations

from typing import Any

from thalweg.interfaces import shown
from thalweg.structured.lint.counts import check_counts
from thalweg.structured.lint.keywords import NEVER_OF_ARRAYS
from thalweg.structured.lint.nodes import Node, Nodes


def check(node: Node, name: str, nodes: Nodes) -> list[Any]:
    """Have the items checked; those that every array has."""
    schema, path, findings = node.schema, node.path, nodes.findings
    for word, instead in NEVER_OF_ARRAYS.items():
        if word in schema:
            findings.refuse(path / word, f"is not enforced; {instead}")
    if schema.get("uniqueItems", False) is not False:
        findings.refuse(path / "uniqueItems", "would be ignored; leave it out, or list the arrays with enum")
    least, most = check_counts(schema, "minItems", "maxItems", path, findings)
    prefix = schema.get("prefixItems", [])
    if not isinstance(prefix, list):
        findings.refuse(path / "prefixItems", f"is {shown(prefix)}; it must be a list of schemas")
    for index, item in enumerate(prefix):
        if item is True:
            findings.refuse(path / "prefixItems" / index, "is true, which is not supported here; write {}")
        nodes.add(node.child(item, "prefixItems", index))
    rest = _rest(node, nodes)
    if most is not None and most < len(prefix):
        findings.refuse(path / "maxItems", f"is {most} beside {len(prefix)} prefixItems; give as many of these")
    if rest is False and least > len(prefix):
        findings.refuse(
            path / "minItems",
            f"is {least}, and beside {len(prefix)} prefixItems there are no other items: give items, or strict=False",
        )
    required = list(prefix[:least])
    return [*required, rest] if least > len(prefix) else required


def _rest(node: Node, nodes: Nodes) -> Any:
    """The schema of the items after the prefix; False if there are none."""
    for word in ("items", "unevaluatedItems"):
        if word in node.schema:
            rest = node.schema[word]
            if rest is not False:
                nodes.add(node.child(rest, word))
            return rest
    is_bare = not {"prefixItems", "minItems", "maxItems"} & node.schema.keys()
    return is_bare or not nodes.is_strict
