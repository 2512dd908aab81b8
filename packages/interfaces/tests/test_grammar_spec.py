import dataclasses
import enum
import json
import math
import pickle
import types
from typing import Any

import pytest

from thalweg.interfaces import ConfigError, GrammarSpec
from thalweg.interfaces.grammar_spec import GRAMMAR_KINDS

SOURCES = {"json": "{}", "regex": "a+", "ebnf": 'root ::= "a"', "choice": '["a"]', "structural_tag": "{}"}


def deep(depth: int) -> dict[str, Any]:
    schema: dict[str, Any] = {}
    for _ in range(depth):
        schema = {"items": schema}
    return schema


@pytest.mark.parametrize("kind", GRAMMAR_KINDS)
def test_kind_and_source_are_enough(kind: str) -> None:
    spec = GrammarSpec(kind, SOURCES[kind])
    assert (spec.strict, spec.any_whitespace, spec.max_whitespace) == (True, True, None)
    assert (spec.trigger_token_ids, spec.bound_token_id) == ((), None)


BAD_FIELDS: list[tuple[dict[str, Any], str]] = [
    *(({"kind": kind}, "^kind is .* must be one of json, regex, ebnf") for kind in ("JSON", "", "lark", None, 1, [])),
    *(({"source": source}, "^source is .* non-empty string") for source in ("", None, b"a", {}, "a\ud800", 5)),
    *(({"strict": value}, "^strict is .* True or False") for value in (1, None, "no")),
    *(({"any_whitespace": value}, "^any_whitespace is .* True or False") for value in (0, None, "no")),
    *(({"max_whitespace": value}, "^max_whitespace is .* None or an int") for value in (-1, 1.0, True, "1", math.inf)),
    *(
        ({"trigger_token_ids": value}, "^trigger_token_ids is .* sequence of token ids")
        for value in (None, 5, "12", b"12", {1: 2})
    ),
    *(
        ({"trigger_token_ids": [value]}, "^trigger_token_ids contains .* int >= 0")
        for value in (-1, 1.0, True, "1", None, [1])
    ),
    *(
        ({"trigger_token_ids": (1,), "bound_token_id": value}, "^bound_token_id is .* None or an int >= 0")
        for value in (-1, 1.0, True, False, "1", [1], (1,))
    ),
    ({"bound_token_id": 0}, "^bound_token_id is 0 and trigger_token_ids is empty"),
    ({"any_whitespace": False, "max_whitespace": 3}, "^max_whitespace is 3 and any_whitespace is False"),
]


@pytest.mark.parametrize(("values", "message"), BAD_FIELDS, ids=lambda value: str(value)[:50])
def test_a_bad_field_is_a_config_error_that_names_it(values: dict[str, Any], message: str) -> None:
    with pytest.raises(ConfigError, match=message):
        GrammarSpec(**{"kind": "json", "source": "{}", **values})


@pytest.mark.parametrize("kind", sorted({*GRAMMAR_KINDS} - {"json"}))
@pytest.mark.parametrize("option", [{"strict": False}, {"any_whitespace": False}, {"max_whitespace": 4}])
def test_an_option_of_json_is_refused_for_other_kinds(kind: str, option: dict[str, Any]) -> None:
    with pytest.raises(ConfigError, match=f"^{next(iter(option))} is .* and kind is '{kind}'; only json has it"):
        GrammarSpec(kind, SOURCES[kind], **option)


class Kind(enum.StrEnum):
    REGEX = "regex"


class Odd(int):
    def __ge__(self, other: object) -> bool:
        return True

    __lt__ = __ge__


def test_values_of_subclasses_are_kept_as_plain_ones() -> None:
    spec = GrammarSpec(Kind.REGEX, Kind.REGEX, trigger_token_ids=[Odd(3)], bound_token_id=Odd(4))  # type: ignore[arg-type]
    kept = [spec.kind, spec.source, *spec.trigger_token_ids, spec.bound_token_id]
    assert (kept, [type(value) for value in kept]) == (["regex", "regex", 3, 4], [str, str, int, int])
    with pytest.raises(ConfigError, match="trigger_token_ids contains -3"):
        GrammarSpec("regex", "a", trigger_token_ids=(Odd(-3),))


def test_a_collection_that_only_looks_like_one_is_a_config_error() -> None:
    class Dimensionless:
        def __iter__(self) -> Any:
            raise TypeError("iteration over a 0-d array")

    with pytest.raises(ConfigError, match=r"trigger_token_ids is .*0-d array"):
        GrammarSpec("regex", "a", trigger_token_ids=Dimensionless())  # type: ignore[arg-type]


def test_specifications_are_frozen_equal_by_value_hashable_and_picklable() -> None:
    spec = GrammarSpec.regex("a", trigger_token_ids=[1, 2], bound_token_id=0)
    assert len({spec, GrammarSpec("regex", "a", trigger_token_ids=(1, 2), bound_token_id=0)}) == 1
    assert pickle.loads(pickle.dumps(spec)) == spec
    with pytest.raises(dataclasses.FrozenInstanceError):
        spec.source = "b"  # type: ignore[misc]


def test_a_schema_may_be_text_or_what_json_makes_of_it() -> None:
    schema = {"type": "object", "properties": {"größe": {"enum": ["谷", None, 1.5]}}}
    assert json.loads(GrammarSpec.json(schema).source) == schema
    assert "谷" in GrammarSpec.json(schema).source
    assert GrammarSpec.json(types.MappingProxyType(schema)) == GrammarSpec.json(schema)
    assert GrammarSpec.json(" {} ").source == " {} "
    assert GrammarSpec.json(True).source == "true"
    assert list(json.loads(GrammarSpec.json({"b": 1, "a": 2}).source)) == ["b", "a"]


def test_the_options_of_json_reach_their_fields() -> None:
    spec = GrammarSpec.json({}, strict=False, max_whitespace=0, trigger_token_ids=[5], bound_token_id=0)
    assert spec == GrammarSpec("json", "{}", False, True, 0, (5,), 0)
    assert GrammarSpec.json({}, any_whitespace=False) == GrammarSpec("json", "{}", any_whitespace=False)


CYCLIC: dict[str, Any] = {}
CYCLIC["not"] = CYCLIC


@pytest.mark.parametrize(
    "schema", [{"minimum": math.nan}, {"const": {1, 2}}, {"x": b"a"}, {(1, 2): 3}, CYCLIC, deep(100_000)]
)
def test_a_schema_that_json_cannot_hold_is_a_config_error(schema: Any) -> None:
    with pytest.raises(ConfigError, match=r"^schema is .*, which JSON cannot hold: "):
        GrammarSpec.json(schema)


@pytest.mark.parametrize("schema", [None, 5, [{}], b"{}"])
def test_a_schema_of_another_type_is_a_config_error(schema: Any) -> None:
    with pytest.raises(ConfigError, match=r"^schema is .*; it must be a mapping, a bool, or the text of one"):
        GrammarSpec.json(schema)


def test_a_lone_surrogate_inside_a_schema_is_refused() -> None:
    with pytest.raises(ConfigError, match=r"^source is .* Unicode text"):
        GrammarSpec.json({"const": "\udfff"})


def test_choices_are_kept_in_order_and_may_be_empty_texts() -> None:
    assert json.loads(GrammarSpec.choice(("yes", "谷", "", '"\n')).source) == ["yes", "谷", "", '"\n']


@pytest.mark.parametrize("choices", [[], (), "ab", b"ab", None, 5, ["a", 1], ["\ud800"], {"a": 1}, [None]])
def test_choices_that_are_not_a_list_of_texts_are_refused(choices: Any) -> None:
    with pytest.raises(ConfigError, match=r"^choice is .*; it must be a list of at least one string"):
        GrammarSpec.choice(choices)


def test_a_structural_tag_may_be_text_or_a_mapping() -> None:
    tag = {"type": "structural_tag", "format": {"type": "const_string", "value": "a"}}
    assert json.loads(GrammarSpec.structural_tag(tag).source) == tag
    assert GrammarSpec.structural_tag("{}").source == "{}"
    with pytest.raises(ConfigError, match="structural_tag is 5"):
        GrammarSpec.structural_tag(5)  # type: ignore[arg-type]


def test_every_constructor_takes_trigger_and_bound() -> None:
    makers = {name: getattr(GrammarSpec, name) for name in GRAMMAR_KINDS}
    for kind, make in makers.items():
        source = ["a"] if kind == "choice" else SOURCES[kind]
        spec = make(source, trigger_token_ids=[1, 2], bound_token_id=3)
        assert spec == GrammarSpec(kind, SOURCES[kind], trigger_token_ids=(1, 2), bound_token_id=3)


SCHEMA = {"type": "integer"}
SPELLINGS: list[tuple[dict[str, Any], GrammarSpec]] = [
    ({"kind": "regex", "source": "a"}, GrammarSpec.regex("a")),
    ({"kind": "json", "source": SCHEMA}, GrammarSpec.json(SCHEMA)),
    ({"kind": "choice", "source": ["a", "b"]}, GrammarSpec.choice(["a", "b"])),
    ({"schema_type": "json", "schema": '{"type": "integer"}'}, GrammarSpec.json(SCHEMA)),
    (
        {"schema_type": "ebnf", "schema": 'root ::= "a"', "trigger_token_ids": None, "bound_token_id": None},
        GrammarSpec.ebnf('root ::= "a"'),
    ),
    (
        {"schema_type": "regex", "schema": "a", "trigger_token_ids": [5, 6], "bound_token_id": 0},
        GrammarSpec.regex("a", trigger_token_ids=(5, 6), bound_token_id=0),
    ),
    ({"json": SCHEMA}, GrammarSpec.json(SCHEMA)),
    ({"json": '{"type": "integer"}', "regex": None}, GrammarSpec.json(SCHEMA)),
    ({"json": True, "strict": False, "max_whitespace": 2}, GrammarSpec.json(True, strict=False, max_whitespace=2)),
    ({"json": {}, "disable_any_whitespace": True}, GrammarSpec.json({}, any_whitespace=False)),
    ({"json": {}, "disable_any_whitespace": False}, GrammarSpec.json({})),
    ({"json": {}, "disable_additional_properties": True}, GrammarSpec.json({})),
    ({"json_object": True}, GrammarSpec.json({"type": "object"})),
    ({"json_object": False, "choice": ["a"]}, GrammarSpec.choice(["a"])),
    ({"regex": "a"}, GrammarSpec.regex("a")),
    ({"grammar": 'root ::= "a"'}, GrammarSpec.ebnf('root ::= "a"')),
    ({"ebnf": 'root ::= "a"'}, GrammarSpec.ebnf('root ::= "a"')),
    ({"choice": ["a", "b"]}, GrammarSpec.choice(["a", "b"])),
    ({"structural_tag": {"format": {}}}, GrammarSpec.structural_tag({"format": {}})),
]


@pytest.mark.parametrize(("values", "spec"), SPELLINGS, ids=lambda value: str(value)[:60])
def test_every_spelling_means_a_specification(values: dict[str, Any], spec: GrammarSpec) -> None:
    assert GrammarSpec.from_dict(values) == spec
    assert GrammarSpec.from_dict(types.MappingProxyType(values)) == spec


BAD_SPELLINGS: list[tuple[dict[Any, Any], str]] = [
    ({}, "^kind is not given; give kind and source, or one of json, regex"),
    ({"json_object": False}, "^kind is not given"),
    ({"kind": "regex"}, "^source is not given"),
    ({"source": "a"}, "^kind is not given"),
    ({"json": {}, "regex": "a"}, "^kind is given twice, once by 'regex'"),
    ({"json": {}, "json_object": True}, "^kind is given twice, once by 'json_object'"),
    ({"ebnf": "a", "grammar": "a"}, "^kind is given twice, once by 'grammar'"),
    ({"kind": "regex", "schema_type": "regex", "source": "a"}, "^kind is given twice, once by 'schema_type'"),
    ({"kind": "regex", "source": "a", "schema": "a"}, "^source is given twice, once by 'schema'"),
    ({"regex": "a", "schema": "a"}, "^source is given twice"),
    ({"json": {}, "any_whitespace": True, "disable_any_whitespace": True}, "^any_whitespace is given twice"),
    ({"json": {}, "strict": False, "disable_additional_properties": True}, "^strict is given twice"),
    ({"regex": "a", "serialized": "x"}, "^serialized is 'x'; compiled grammars are not taken"),
    ({"regex": "a", "bound_token_ids": [1]}, r"^bound_token_ids is \[1\]; .* give bound_token_id"),
    ({"json": {}, "whitespace_pattern": " ?"}, "^whitespace_pattern is ' .'; any_whitespace and max_whitespace"),
    ({"lark": "a"}, "^unknown option 'lark' of a constraint; known are any_whitespace, bound_token_id"),
    ({5: "a"}, "^unknown option 5"),
    ({"schema_type": "lark", "schema": "a"}, "^kind is 'lark'; it must be one of"),
    ({"schema_type": [], "schema": "a"}, r"^kind is \[\]; it must be one of"),
    ({"regex": 5}, "^source is 5; it must be a non-empty string"),
    ({"json": 5}, "^schema is 5"),
    ({"json_object": 1}, "^json_object is 1; it must be True or False"),
    ({"regex": "a", "strict": False}, "^strict is False and kind is 'regex'"),
]


@pytest.mark.parametrize(("values", "message"), BAD_SPELLINGS, ids=lambda value: str(value)[:60])
def test_a_bad_mapping_is_a_config_error(values: dict[str, Any], message: str) -> None:
    with pytest.raises(ConfigError, match=message):
        GrammarSpec.from_dict(values)


@pytest.mark.parametrize("values", [None, 1, "json", [], [("json", {})]])
def test_what_is_no_mapping_is_refused(values: Any) -> None:
    with pytest.raises(ConfigError, match=r"a constraint is .*; it must be a mapping"):
        GrammarSpec.from_dict(values)
