"""Schemas whose values can never be complete, because each contains another one."""

from __future__ import annotations

from typing import Any

from thalweg.structured.lint.nodes import Node


class Endings:
    """For every schema the ways to complete a value: the schemas of which a value is needed then."""

    def __init__(self) -> None:
        self._nodes: dict[int, Node] = {}
        self._ways: dict[int, list[list[int]]] = {}

    def add(self, node: Node, ways: list[list[Any]]) -> None:
        """ways: of each the schemas that it needs; those that need nothing themselves are left out."""
        self._nodes[id(node.schema)] = node
        self._ways[id(node.schema)] = [[id(part) for part in way if isinstance(part, dict)] for way in ways]

    def endless(self) -> Node | None:
        """The first schema without a way that ends. Time is linear in the number of all parts."""
        waits_for: dict[int, list[tuple[int, int]]] = {}
        missing = {}
        ending: list[int] = []
        for key, ways in self._ways.items():
            for number, way in enumerate(ways):
                missing[key, number] = len(way)
                for part in way:
                    waits_for.setdefault(part, []).append((key, number))
                if not way:
                    ending.append(key)
        ended: set[int] = set()
        while ending:
            key = ending.pop()
            if key in ended:
                continue
            ended.add(key)
            for place in waits_for.get(key, ()):
                missing[place] -= 1
                if not missing[place]:
                    ending.append(place[0])
        return next((node for key, node in self._nodes.items() if key not in ended), None)
