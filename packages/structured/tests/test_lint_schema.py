"""Schemas: what is accepted, where something stands, and what only looks like a contradiction."""

from __future__ import annotations

from typing import Any

import pytest
from lint_testing.verdicts import library_accepts, library_refusal, refusal, schema_refusal

from thalweg.interfaces import GrammarSpec
from thalweg.structured.lint import check

TREE = {"type": "object", "properties": {"left": {"$ref": "#"}, "value": {"type": "integer"}}, "required": ["value"]}
EVENTS = {
    "$schema": "https://json-schema.org/draft/2020-12/schema",
    "$id": "https://example.com/events",
    "title": "Events",
    "type": "object",
    "properties": {
        "kind": {"type": "string", "enum": ["start", "stop"], "description": "What happened"},
        "at": {"type": "string", "format": "date-time"},
        "code": {"type": ["integer", "null"], "minimum": 0, "maximum": 9998, "multipleOf": 2},
        "tags": {"type": "array", "items": {"type": "string", "maxLength": 200}, "maxItems": 500},
        "next": {"anyOf": [{"$ref": "#/$defs/event"}, {"type": "null"}], "default": None},
        "literal": {"const": "x", "enum": ["x"], "type": "string"},
        "pair": {"type": "array", "prefixItems": [{}, {"type": "number", "exclusiveMinimum": 0}], "items": False},
        "map": {"type": "object", "additionalProperties": {"type": "boolean"}, "minProperties": 1},
        "named": {"type": "object", "properties": {"id": {}}, "patternProperties": {"^x-[a-z]+$": {"type": "string"}}},
        "wrapped": {"allOf": [{"$ref": "#/$defs/event"}], "description": "one member"},
    },
    "required": ["kind", "at"],
    "$defs": {"event": {"type": "object", "properties": {"next": {"$ref": "#/properties/next"}}}},
    "x-origin": "a tool",
}


@pytest.mark.parametrize(
    "schema",
    [True, {}, TREE, EVENTS, {"type": "array", "items": {"$ref": "#"}}, {"$comment": "anything", "title": "any"}],
    ids=["true", "empty", "tree", "events", "arrays", "annotations"],
)
def test_ordinary_schemas_pass_without_a_warning(schema: Any) -> None:
    spec = GrammarSpec.json(schema)
    assert check(spec) == ()
    assert library_refusal(spec) is None


@pytest.mark.parametrize(
    ("schema", "path"),
    [
        ({"properties": {"age": {"type": "integer", "minimum": "1"}}}, "$.properties.age.minimum is '1'"),
        ({"properties": {"a b": {"not": {}}}}, '$.properties["a b"].not'),
        ({"properties": {"": {"not": {}}}}, '$.properties[""].not'),
        ({"properties": {"größe": {"not": {}}}}, '$.properties["größe"].not'),
        ({"properties": {"x" * 1000: {"not": {}}}}, f'$.properties["{"x" * 60}..."].not'),
        ({"anyOf": [{}, {"type": "array", "prefixItems": [{}, {"not": {}}]}]}, "$.anyOf[1].prefixItems[1].not"),
        ({"items": {"additionalProperties": {"not": {}}}}, "$.items.additionalProperties.not"),
        ({"$ref": "#/$defs/a~1b/items", "$defs": {"a/b": {"items": {"not": {}}}}}, '$.$defs["a/b"].items.not'),
        ({"properties": {"a": 5}}, "$.properties.a is 5; a schema must be an object or a bool"),
        ({"properties": {"a": False}}, "$.properties.a is false, which no value matches"),
    ],
)
def test_a_refusal_names_the_place(schema: Any, path: str) -> None:
    assert f"invalid grammar: json: {path}" in (schema_refusal(schema) or "")


def test_a_place_that_is_deep_is_shortened_in_its_middle() -> None:
    schema: dict[str, Any] = {"not": {}}
    for _ in range(20):
        schema = {"items": schema}
    message = schema_refusal(schema)
    assert message is not None
    assert "$.items.items.items.items.items.items[...]".replace("[...]", "...") in message
    assert message.count(".items") == 11


def test_definitions_that_nothing_leads_to_are_not_looked_at() -> None:
    assert schema_refusal({"type": "integer", "$defs": {"a": {"not": {}}}, "definitions": {"b": False}}) is None


@pytest.mark.parametrize(
    "schema",
    [
        {"type": "integer", "uniqueItems": True, "minLength": 3, "pattern": "(?=a)", "required": ["b"]},
        {"type": "string", "multipleOf": 0.5, "contains": {}, "minItems": -1},
        {"type": "array", "items": {}, "uniqueItems": False, "dependentRequired": {}},
    ],
    ids=str,
)
def test_keywords_of_other_types_constrain_nothing(schema: Any) -> None:
    assert schema_refusal(schema) is None


def test_every_reference_that_is_accepted_leads_where_the_library_goes() -> None:
    names = {"a/b": "a~1b", "a b": "a%20b", "a~b": "a~0b", "a%b": "a%25b", "谷": "谷", "é": "%C3%A9", "a.b": "a.b"}
    for name, spelled in names.items():
        schema = {"$ref": f"#/$defs/{spelled}", "$defs": {name: {"type": "integer"}, "other": {}}}
        assert schema_refusal(schema) is None, name
        assert library_accepts(GrammarSpec.json(schema), "1")
        assert not library_accepts(GrammarSpec.json(schema), '"x"')


@pytest.mark.parametrize(
    "reference", ["", "#/", "#/$defs", "#/$defs/a/", "#/$defs/b", "#/anyOf/2", "#/anyOf/-1", "#/anyOf/01x", 5, None]
)
def test_references_that_lead_nowhere_or_to_no_schema_are_refused(reference: Any) -> None:
    schema = {"anyOf": [{"type": "null"}, {"$ref": reference}], "$defs": {"a": {"type": "integer"}}}
    message = schema_refusal(schema)
    if reference == "#/$defs":  # an object of schemas is a schema without keywords that mean anything
        assert message is None
        assert check(GrammarSpec.json(schema)) != ()
    else:
        assert message is not None
        assert "$.anyOf[1].$ref" in message


ENDLESS = [
    {"$ref": "#"},
    {"allOf": [{"$ref": "#"}]},
    {"anyOf": [{"$ref": "#"}, {"$ref": "#/anyOf/0"}]},
    {"type": "array", "items": {"$ref": "#"}, "minItems": 1},
    {"type": "array", "prefixItems": [{}, {"$ref": "#"}], "minItems": 2},
    {
        "type": "object",
        "properties": {"a": {"type": "object", "properties": {"b": {"$ref": "#"}}, "required": ["b"]}},
        "required": ["a"],
    },
    {"$ref": "#/$defs/a", "$defs": {"a": {"$ref": "#/$defs/b"}, "b": {"$ref": "#/$defs/a"}}},
    {
        "type": "object",
        "properties": {"a": {"$ref": "#/$defs/a"}},
        "$defs": {"a": {"type": "array", "items": {"$ref": "#/$defs/a"}, "minItems": 1}},
    },
]
ENDING = [
    TREE,
    {"type": "array", "items": {"$ref": "#"}},
    {"type": "array", "prefixItems": [{}, {"$ref": "#"}], "minItems": 1},
    {"type": "array", "items": {"$ref": "#"}, "minItems": 0, "maxItems": 3},
    {"anyOf": [{"type": "object", "properties": {"a": {"$ref": "#"}}, "required": ["a"]}, {"type": "null"}]},
    {"type": ["array", "null"], "items": {"$ref": "#"}, "minItems": 1},
    {"$ref": "#/$defs/a", "$defs": {"a": {"anyOf": [{"$ref": "#/$defs/a"}, {"type": "integer"}]}}},
]


@pytest.mark.parametrize("schema", ENDLESS, ids=str)
def test_schemas_whose_values_never_end_are_refused(schema: Any) -> None:
    assert "is never complete" in (schema_refusal(schema) or "")


@pytest.mark.parametrize("schema", ENDING, ids=str)
def test_recursion_that_can_end_is_accepted(schema: Any) -> None:
    assert schema_refusal(schema) is None
    assert library_refusal(GrammarSpec.json(schema)) is None


CAT = {"type": "object", "properties": {"kind": {"const": "cat"}, "lives": {"type": "integer"}}, "required": ["kind"]}
DOG = {"type": "object", "properties": {"kind": {"enum": ["dog", "hound"]}}, "required": ["kind"]}
DISJOINT = [
    [CAT, DOG],
    [CAT, DOG, {"type": "null"}, {"type": "array", "items": {}}],
    [{"const": "a"}, {"enum": ["b", 1]}, {"const": 2.5}],
    [{"type": "string"}, {"type": ["integer", "null"]}],
    [{"$ref": "#/$defs/cat"}, {"$ref": "#/$defs/dog"}],
    [{"type": "integer"}],
]
OVERLAPPING = [
    [CAT, CAT],
    [CAT, DOG | {"required": []}],
    [CAT, {"type": "object"}],
    [{"const": 1}, {"const": 1.0}],
    [{"const": 1}, {"type": "integer"}],
    [{"type": "integer"}, {"type": "number"}],
    [{}, {"type": "null"}],
    [{"type": "string", "maxLength": 2}, {"type": "string", "minLength": 3}],
]


@pytest.mark.parametrize(("branches", "overlaps"), [(DISJOINT, False), (OVERLAPPING, True)], ids=["disjoint", "not"])
def test_only_branches_that_may_overlap_are_warned_of(branches: list[list[Any]], overlaps: bool) -> None:
    for group in branches:
        warnings = check(GrammarSpec.json({"oneOf": group, "$defs": {"cat": CAT, "dog": DOG}}))
        assert bool(warnings) == overlaps, group


@pytest.mark.parametrize("word", ["anyOf", "oneOf", "allOf"])
def test_a_type_beside_branches_that_have_it_is_accepted(word: str) -> None:
    cat = {"$ref": "#/$defs/cat"}
    assert schema_refusal({"type": "object", word: [cat], "$defs": {"cat": CAT}}) is None
    assert schema_refusal({"type": ["number"], word: [{"const": 3}]}) is None
    assert "branch 0 admits other types" in (
        schema_refusal({"type": "array", word: [cat], "$defs": {"cat": CAT}}) or ""
    )
    assert "at least one schema" in (schema_refusal({word: []}) or "")


def test_only_strict_schemas_lack_what_they_do_not_declare() -> None:
    schema = {"type": "array", "prefixItems": [{}], "minItems": 2}
    assert "strict=False" in (schema_refusal(schema) or "")
    assert schema_refusal(schema, strict=False) is None
    named = {"type": "object", "properties": {"a": {}}, "minProperties": 1}
    assert schema_refusal(named) is None
    assert "one name written several times" in (schema_refusal(named | {"minProperties": 2}, strict=False) or "")


@pytest.mark.parametrize(
    ("names", "patterns", "refused"),
    [
        (["id"], ["^x-"], False),
        (["x"], ["^x-"], False),
        (["x-"], ["^x-"], True),
        (["x-a"], ["^x-"], True),
        ([], ["^x-", "^y"], False),
        ([], ["^x", "^xy"], True),
        ([], [".*"], False),
        (["a"], [".*"], True),
        (["a"], ["^ba?$"], False),
        (["b"], ["^ba?$"], True),
        (["a"], ["^b|^a"], True),
        (["a"], ["^b(c|a)"], False),
        (["a", "b", "c"], ["^bx$"], False),
    ],
)
def test_names_that_two_schemas_are_for_are_refused(names: list[str], patterns: list[str], refused: bool) -> None:
    schema = {
        "type": "object",
        "properties": {key: {} for key in names},
        "patternProperties": {key: {"type": "string"} for key in patterns},
    }
    assert (schema_refusal(schema) is not None) == refused


@pytest.mark.parametrize(
    ("bounds", "is_empty"),
    [
        ({"minimum": 3, "maximum": 3}, False),
        ({"minimum": 3, "exclusiveMaximum": 3}, True),
        ({"exclusiveMinimum": 0.5, "exclusiveMaximum": 0.500001}, True),
        ({"exclusiveMinimum": 0.5, "exclusiveMaximum": 0.500002}, False),
        ({"minimum": 1e300}, False),
        ({"minimum": 0.1, "maximum": 0.1}, False),
        ({"minimum": 2**53 + 1, "maximum": 2**53}, True),
    ],
)
def test_a_number_needs_room_for_six_decimals(bounds: dict[str, Any], is_empty: bool) -> None:
    assert ("admits no number" in (schema_refusal({"type": "number", **bounds}) or "")) == is_empty


@pytest.mark.parametrize("minimum", [-(2**63), 2**63, 1e30, True, "1", None])
def test_bounds_of_integers_are_whole_and_fit_64_bits(minimum: Any) -> None:
    assert "$.minimum is" in (schema_refusal({"type": "integer", "minimum": minimum}) or "")


def test_values_beside_each_other_must_agree() -> None:
    assert schema_refusal({"const": 1, "enum": [2, 1.0]}) is None
    assert "$.const is 1, which is not in the enum" in (schema_refusal({"const": 1, "enum": [True, "1"]}) or "")
    assert schema_refusal({"type": "number", "enum": [1, 2.5]}) is None
    assert schema_refusal({"type": "integer", "const": 5.0}) is None
    assert "$.enum[0] is True" in (schema_refusal({"type": "integer", "enum": [True]}) or "")
    assert "$.const has the integer" in (schema_refusal({"const": [{"a": 2**63}]}) or "")


def test_tags_are_looked_into() -> None:
    def tag(*contents: Any) -> GrammarSpec:
        tags = [
            {"type": "tag", "begin": f"<{n}>", "content": content, "end": "</>"} for n, content in enumerate(contents)
        ]
        return GrammarSpec.structural_tag({"type": "structural_tag", "format": {"type": "or", "elements": tags}})

    good = {"type": "json_schema", "json_schema": {"type": "object", "properties": {"type": {"const": "regex"}}}}
    assert check(tag(good, {"type": "regex", "pattern": "[a-z]+"}, {"type": "any_text"})) == ()
    place = "structural_tag: $.format.elements[1].content"
    for content, message in [
        ({"type": "json_schema", "json_schema": {"not": {}}}, f"{place}.json_schema.not would be ignored"),
        ({"type": "json_schema", "json_schema": {"$ref": "#"}}, f"{place}.json_schema is never complete"),
        ({"type": "regex", "pattern": "(?i)a"}, f"{place}.pattern has '(?i' at character 1"),
        ({"type": "grammar", "grammar": 'root ::= "a"{10001}'}, f"{place}.grammar repeats 10001 times"),
        ({"type": "repeat", "min": 1, "max": 10_001, "content": good}, f"{place} repeats 10001 times"),
    ]:
        assert message in (refusal(tag(good, content)) or "")
    assert refusal(GrammarSpec("structural_tag", "[]")) == (
        "invalid grammar: structural_tag: $ is []; it must be an object"
    )
