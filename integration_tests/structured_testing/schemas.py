"""Sixty JSON schemas of every kind that is served."""

from __future__ import annotations

from typing import Any

Schema = dict[str, Any] | bool

_TEXT: Schema = {"type": "string", "maxLength": 12}
_COUNT: Schema = {"type": "integer", "minimum": 0, "maximum": 99}


def _object(required: str = "", /, **properties: Schema) -> dict[str, Any]:
    """An object with these properties; required: their names, separated by spaces."""
    return {"type": "object", "properties": properties, "required": required.split()}


def _nested(depth: int) -> dict[str, Any]:
    return _object("deeper", deeper=_nested(depth - 1)) if depth else _object("bottom", bottom={"type": "boolean"})


SCALARS: dict[str, Schema] = {
    "boolean": {"type": "boolean"},
    "null": {"type": "null"},
    "integer": {"type": "integer"},
    "number": {"type": "number"},
    "string": {"type": "string"},
    "several types": {"type": ["integer", "null", "boolean"]},
    "anything": True,
    "const number": {"const": 42},
    "const text": {"const": 'quote " and backslash \\ and line\nend'},
    "const object": {"const": {"a": [1, None, True], "b": "c"}},
    "const null": {"const": None},
}
ENUMS: dict[str, Schema] = {
    "texts": {"enum": ["red", "green", "blue", "dark red"]},
    "mixed": {"enum": ["a", 1, 2.5, None, True, False, [], {}, [1, "b"], {"k": 1}]},
    "texts that begin alike": {"type": "string", "enum": ["a", "aa", "aaa", "ab", ""]},
    "unicode": {"enum": ["straße", "日本", "naïve", "🙂"]},
    "whole numbers": {"type": "integer", "enum": [-1, 0, 1, 10, 100, 1000]},
}
NUMBERS: dict[str, Schema] = {
    "from 5 to 17": {"type": "integer", "minimum": 5, "maximum": 17},
    "at least -3": {"type": "integer", "minimum": -3},
    "at most 250": {"type": "integer", "maximum": 250},
    "between 0 and 1000": {"type": "integer", "exclusiveMinimum": 0, "exclusiveMaximum": 1000},
    "negative": {"type": "integer", "minimum": -120, "maximum": -7},
    "real from 0 to 1": {"type": "number", "minimum": 0, "maximum": 1},
    "real from -2.5 to 3.75": {"type": "number", "minimum": -2.5, "maximum": 3.75},
    "multiple of 5": {"type": "integer", "multipleOf": 5},
}
STRINGS: dict[str, Schema] = {
    "at most 8 characters": {"type": "string", "maxLength": 8},
    "3 to 6 characters": {"type": "string", "minLength": 3, "maxLength": 6},
    "at least 2 characters": {"type": "string", "minLength": 2},
    "pattern of a code": {"type": "string", "pattern": "^[A-Z]{2}-[0-9]{3,5}$"},
    "pattern with choices": {"type": "string", "pattern": "(foo|ba[rz])+(-(x|y)?)?"},
    "pattern of any letters": {"type": "string", "pattern": "^\\w{1,6}$"},
    "date": {"type": "string", "format": "date"},
    "date and time": {"type": "string", "format": "date-time"},
    "uuid": {"type": "string", "format": "uuid"},
    "unknown format": {"type": "string", "format": "telephone"},
}
ARRAYS: dict[str, Schema] = {
    "of whole numbers": {"type": "array", "items": {"type": "integer"}},
    "of 2 to 4 booleans": {"type": "array", "items": {"type": "boolean"}, "minItems": 2, "maxItems": 4},
    "at most 3 texts": {"type": "array", "items": _TEXT, "maxItems": 3},
    "at least 1 count": {"type": "array", "items": _COUNT, "minItems": 1},
    "exactly 2 arrays": {
        "type": "array",
        "items": {"type": "array", "items": _COUNT, "maxItems": 2},
        "minItems": 2,
        "maxItems": 2,
    },
    "a pair": {"type": "array", "prefixItems": [_TEXT, _COUNT], "items": False, "minItems": 2},
    "a head and numbers": {"type": "array", "prefixItems": [{"type": "boolean"}], "items": _COUNT, "minItems": 1},
    "of anything": {"type": "array", "maxItems": 3},
}
OBJECTS: dict[str, Schema] = {
    "two fields": _object("name age", name=_TEXT, age=_COUNT),
    "optional fields": _object("", a=_COUNT, b={"type": "boolean"}, c={"type": "null"}),
    "required in the middle": _object("b", a=_COUNT, b={"type": "boolean"}, c=_COUNT),
    "four levels": _nested(4),
    "unicode keys": _object("名前 größe", **{"名前": _TEXT, "größe": _COUNT, "🙂": {"type": "boolean"}}),
    "keys with escapes": _object('a"b c\\d', **{'a"b': _COUNT, "c\\d": _COUNT, "tab\tin": _COUNT}),
    "more of counts": _object("id", id=_COUNT) | {"additionalProperties": _COUNT},
    "no more": _object("id", id=_COUNT, tag={"enum": ["x", "y"]}) | {"additionalProperties": False},
    "any counts": {"type": "object", "additionalProperties": _COUNT},
    "anything": {"type": "object"},
    "empty": {"type": "object", "properties": {}, "additionalProperties": False},
}
COMPOSED: dict[str, Schema] = {
    "reference": _object("from to", **{"from": {"$ref": "#/$defs/point"}, "to": {"$ref": "#/$defs/point"}})
    | {"$defs": {"point": _object("x y", x=_COUNT, y=_COUNT)}},
    "old definitions": {
        "$ref": "#/definitions/a",
        "definitions": {"a": {"type": "array", "items": {"$ref": "#/definitions/b"}}, "b": _COUNT},
    },
    "tree": {
        "$ref": "#/$defs/node",
        "$defs": {
            "node": _object("value", value=_COUNT, left={"$ref": "#/$defs/node"}, right={"$ref": "#/$defs/node"})
        },
    },
    "list": {
        "$ref": "#/$defs/list",
        "$defs": {
            "list": {"anyOf": [{"type": "null"}, _object("head tail", head=_COUNT, tail={"$ref": "#/$defs/list"})]}
        },
    },
    "any of": {"anyOf": [{"type": "boolean"}, _COUNT, _object("a", a=_TEXT)]},
    "one of shapes": {
        "oneOf": [
            _object("kind radius", kind={"const": "circle"}, radius=_COUNT),
            _object("kind width height", kind={"const": "box"}, width=_COUNT, height=_COUNT),
        ]
    },
    "all of one": {"allOf": [_object("a", a=_COUNT)]},
}
SCHEMAS: dict[str, Schema] = {
    f"{family}: {name}": schema
    for family, schemas in (
        ("scalar", SCALARS),
        ("enum", ENUMS),
        ("number", NUMBERS),
        ("string", STRINGS),
        ("array", ARRAYS),
        ("object", OBJECTS),
        ("composed", COMPOSED),
    )
    for name, schema in schemas.items()
}
