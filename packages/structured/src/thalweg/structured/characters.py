"""Which characters "any but these" stands for: xgrammar's classes let some through that no text, or no JSON, may have.

Its strings of a limited length may contain control characters, which JSON forbids, and every negated class the
surrogates, whose bytes are not UTF-8. A serialised grammar is the form of it that can be changed without loss.
"""

from __future__ import annotations

import json

from thalweg.structured.library import Grammar

_CLASSES = (1, 2)
"""Kinds of expressions: one character of a class, and any number of them."""
_LIMITED_STRING = [34, 34, 92, 92, 13, 13, 10, 10]
"""First and last of each range that the characters of a string with minLength or maxLength are not in."""
_STRING = [0x00, 0x1F, 34, 34, 92, 92]
_SURROGATES = [0xD800, 0xDFFF]


def narrowed(grammar: Grammar) -> Grammar:
    """The grammar without control characters in JSON strings, and without surrogates."""
    values = json.loads(grammar.serialize_json())
    data, starts = values["grammar_expr_data"], values["grammar_expr_indptr"]
    narrow: list[int] = []
    shifted = []
    for start, end in zip(starts, [*starts[1:], len(data)], strict=True):
        shifted.append(len(narrow))
        narrow += _narrowed(data[start:end])
    if narrow == data:
        return grammar
    values["grammar_expr_data"], values["grammar_expr_indptr"] = narrow, shifted
    return Grammar.deserialize_json(json.dumps(values))


def _narrowed(expression: list[int]) -> list[int]:
    """expression: kind, number of the values that follow, and these; of a class whether it is negated, and ranges."""
    kind, _, *values = expression
    if kind not in _CLASSES or not values[0]:
        return expression
    ranges = values[1:]
    ranges = (_STRING if ranges == _LIMITED_STRING else ranges) + _SURROGATES
    return [kind, 1 + len(ranges), 1, *ranges]
