"""Grammars by the time that they take."""

from __future__ import annotations

from thalweg.interfaces import GrammarSpec


def quick(number: int = 0) -> GrammarSpec:
    """One of many different grammars that take a millisecond."""
    return GrammarSpec.regex(f"ab*c{number}")


def tangle(size: int, name: str = "n") -> GrammarSpec:
    """Objects that all refer to each other: the time grows faster than the number of references, size * size."""
    objects = {
        f"{name}{i}": {"type": "object", "properties": {f"p{j}": {"$ref": f"#/$defs/{name}{j}"} for j in range(size)}}
        for i in range(size)
    }
    return GrammarSpec.json({"$defs": objects, "$ref": f"#/$defs/{name}0"})


def pathological(name: str = "n") -> GrammarSpec:
    """Takes far longer than any deadline in these tests."""
    return tangle(60, name)
