"""Where $ref leads."""

from __future__ import annotations

from typing import Any
from urllib.parse import unquote

from thalweg.interfaces import shown
from thalweg.structured.lint.nodes import Node, Nodes
from thalweg.structured.lint.paths import Path


def target_of(node: Node, nodes: Nodes) -> tuple[Any, Path]:
    """The schema, and where it stands below the root of its document. Refuses what leads outside, or nowhere."""
    reference, place = node.schema["$ref"], node.path / "$ref"
    if not isinstance(reference, str):
        nodes.findings.refuse(place, f"is {shown(reference)}; it must be a text")
    if reference != "#" and not reference.startswith("#/"):
        nodes.findings.refuse(
            place,
            f"is {shown(reference)}, which would mean any value; it must be # or begin with #/, such as #/$defs/name",
        )
    found = find(reference, nodes.document, nodes.root)
    if found is None:
        nodes.findings.refuse(place, f"is {shown(reference)}, and there is nothing at this place")
    return found


def find(reference: str, document: Any, root: Path) -> tuple[Any, Path] | None:
    """What a reference into a document leads to, and its place; None for nothing."""
    value, path = document, root
    for part in reference.split("/")[1:]:
        key = unquote(part).replace("~1", "/").replace("~0", "~")
        if isinstance(value, dict) and key in value:
            value, path = value[key], path / key
        elif isinstance(value, list) and key.isascii() and key.isdigit() and len(key) < 9 and int(key) < len(value):
            value, path = value[int(key)], path / int(key)
        else:
            return None
    return value, path
