"""Case by case: what the library does with it, in the installed version, and what lint therefore says."""

from __future__ import annotations

from dataclasses import dataclass

import pytest
from lint_testing.verdicts import library_accepts, library_refusal, refusal

from thalweg.interfaces import GrammarSpec
from thalweg.structured.lint import check

json_, regex, ebnf = GrammarSpec.json, GrammarSpec.regex, GrammarSpec.ebnf


@dataclass(frozen=True)
class Case:
    """A specification that lint must not let pass as it is."""

    spec: GrammarSpec
    says: str
    """What lint says, or a part of it."""
    admits: str | None = None
    """A text that the library lets through, and that is not what was asked for."""
    refuses: str | None = None
    """A text that the library does not let through, although it is what was asked for."""


def integers(**constraints: object) -> GrammarSpec:
    return json_({"type": "integer", **constraints})


def strings(**constraints: object) -> GrammarSpec:
    return json_({"type": "string", **constraints})


def arrays(**constraints: object) -> GrammarSpec:
    return json_({"type": "array", **constraints})


def objects(**constraints: object) -> GrammarSpec:
    return json_({"type": "object", **constraints})


A_INTEGER = {"a": {"type": "integer"}}
OVERLAPPING = [{"type": "integer"}, {"type": "number"}]

REFUSED = {
    "uniqueItems": Case(
        arrays(items={}, uniqueItems=True), "$.uniqueItems would be ignored; leave it out, or list", "[1,1]"
    ),
    "letters that are not ASCII in a name beside other properties": Case(
        objects(properties={"größe": {"type": "integer"}}, additionalProperties=True),
        '$.properties["größe"] would not be held to its schema',
        '{"größe":"x"}',
    ),
    "a name with quotes where nothing is strict": Case(
        json_({"type": "object", "properties": {'"q"': {}}}, strict=False),
        "names must be ASCII without quotes, backslashes and control characters",
        '{""x":1}',
    ),
    "a name with a backslash beside other properties": Case(
        objects(properties={"a\\b": {"type": "integer"}}, additionalProperties={"type": "null"}),
        "would not be held to its schema",
        '{"a\\\\b":null}',
    ),
    "not": Case(integers(**{"not": {"const": 3}}), "$.not would be ignored; name what is wanted instead", "3"),
    "if": Case(json_({"if": {"type": "integer"}, "then": {"minimum": 3}}), "$.if would be ignored; use anyOf", "1"),
    "else": Case(json_({"else": {"minimum": 3}}), "$.else would be ignored"),
    "dependentRequired": Case(
        objects(properties=A_INTEGER | {"b": {}}, dependentRequired={"a": ["b"]}),
        "$.dependentRequired would be ignored",
        '{"a":1}',
    ),
    "lengths beside a pattern": Case(
        strings(pattern="^[a-z]+$", minLength=3), "$.minLength would be ignored beside pattern", '"a"'
    ),
    "lengths beside a format": Case(
        strings(format="date", maxLength=3), "$.maxLength would be ignored beside format", '"2020-01-01"'
    ),
    "pattern beside a format": Case(
        strings(format="date", pattern="^x$"), "$.pattern would be ignored beside format", '"2020-01-01"'
    ),
    "required inside anyOf": Case(
        json_({"properties": A_INTEGER, "anyOf": [{"required": ["a"]}, {"required": ["b"]}]}),
        "$.properties would be ignored beside anyOf; put it into the branches",
        "1",
    ),
    "type beside anyOf": Case(
        json_({"type": "string", "anyOf": [{"minLength": 2}, {"const": "x"}]}),
        "$.type would be ignored beside anyOf, whose branch 0 admits other types",
        "5",
    ),
    "allOf": Case(
        json_({"allOf": [{"type": "integer"}, {"minimum": 5}]}), "$.allOf has several members, and any value", '"x"'
    ),
    "lookahead in a pattern": Case(strings(pattern="^(?=a)b$"), "$.pattern has '(?=' at character 2", '"b"'),
    "contains": Case(arrays(contains={"type": "integer"}), "$.contains is not enforced", refuses="[1]"),
    "contains beside items": Case(
        arrays(items={"type": "integer"}, contains={"const": 3}), "$.contains is not enforced", "[1]"
    ),
    "minContains": Case(arrays(items={}, minContains=2), "$.minContains is not enforced", refuses="[]"),
    "required without its property": Case(
        objects(properties=A_INTEGER, required=["b"]), "$.required[0] is 'b', which would be ignored", '{"a":1}'
    ),
    "required without any property": Case(objects(required=["b"]), "$.required[0] is 'b'", "{}", '{"b":1}'),
    "enum of another type": Case(strings(enum=["a", 5]), "$.enum[1] is 5, which is not of type string", "5"),
    "const of another type": Case(integers(const=5.5), "$.const is 5.5, which is not of type integer", "5.5"),
    "constraint beside enum": Case(strings(enum=["a"], minLength=2), "$.minLength would be ignored beside enum", '"a"'),
    "integer that is not exact": Case(
        json_({"const": 12345678901234567891}),
        "$.const has the integer 12345678901234567891",
        refuses="12345678901234567891",
    ),
    "constraint beside $ref": Case(
        json_({"$ref": "#/$defs/a", "minimum": 5, "$defs": {"a": {"type": "integer"}}}),
        "$.minimum would be ignored beside $ref; put it into the schema that it leads to",
        "1",
    ),
    "remote $ref": Case(json_({"$ref": "https://example.com/a"}), "$.$ref is 'https", '"anything"'),
    "$ref to an anchor": Case(json_({"$ref": "#a", "$defs": {"a": {"$anchor": "a"}}}), "$.$ref is '#a'", '"anything"'),
    "$dynamicRef": Case(json_({"$dynamicRef": "#a"}), "$.$dynamicRef would be ignored; use $ref", '"anything"'),
    "$ref to itself": Case(json_({"$ref": "#"}), "$ is never complete"),
    "no end": Case(objects(properties={"a": {"$ref": "#"}}, required=["a"]), "$ is never complete: whatever is chosen"),
    "constraint without a type": Case(
        json_({"minimum": 5}), "$.minimum would be ignored; the schema needs a type", "1"
    ),
    "multipleOf of numbers": Case(
        json_({"type": "number", "multipleOf": 0.5}), "$.multipleOf would be ignored: only integers", "0.3"
    ),
    "multipleOf that is too large": Case(integers(multipleOf=1025), "$.multipleOf is 1025; only integers from 1", "4"),
    "multipleOf that is not whole": Case(integers(multipleOf=1.5), "$.multipleOf is 1.5; only integers from 1", "4"),
    "multipleOf beside one bound": Case(
        integers(multipleOf=7, minimum=5), "$.multipleOf is 7, and would be ignored beside these bounds", "8"
    ),
    "multipleOf in a wide range": Case(
        integers(multipleOf=7, minimum=0, maximum=10_000), "between a minimum and a maximum that are at most 9999", "8"
    ),
    "no number of six decimals": Case(
        json_({"type": "number", "minimum": 1e-7, "maximum": 2e-7}), "$ admits no number of at most 6 decimals", ""
    ),
    "propertyNames beside properties": Case(
        objects(properties=A_INTEGER, propertyNames={"pattern": "^b$"}),
        "$.propertyNames would be ignored beside properties",
        '{"a":1}',
    ),
    "propertyNames beside none": Case(
        objects(propertyNames={"maxLength": 1}, additionalProperties=False),
        "$.propertyNames would let properties through that additionalProperties excludes",
        '{"a":1}',
    ),
    "$ref of propertyNames": Case(
        objects(propertyNames={"$ref": "#/$defs/a"}, **{"$defs": {"a": {"maxLength": 1}}}),
        "$.propertyNames.$ref would be ignored",
        '{"abc":1}',
    ),
    "patternProperties beside others": Case(
        objects(
            properties=A_INTEGER, patternProperties={"^x+$": {"type": "string"}}, additionalProperties={"type": "null"}
        ),
        "$.patternProperties would not hold for all properties",
        '{"x":null}',
    ),
    "patternProperties that match a property": Case(
        objects(properties={"xa": {"type": "integer"}}, patternProperties={"^x.*$": {"type": "string"}}),
        "may match 'xa', which properties is for, too",
        '{"xa":1}',
    ),
    "two patternProperties": Case(
        objects(patternProperties={"^a.$": {"type": "string"}, "^.b$": {"type": "integer"}}),
        "may match names that properties or other patterns are for",
        '{"ab":1}',
    ),
    "minProperties with free names": Case(
        objects(additionalProperties={"type": "integer"}, minProperties=2),
        "one name written several times",
        '{"a":1,"a":1}',
    ),
    "unevaluatedProperties": Case(
        json_({"properties": A_INTEGER, "unevaluatedProperties": False}, strict=False),
        "$.unevaluatedProperties would be ignored with strict=False; use additionalProperties",
        '{"b":1}',
    ),
    "minItems of a bare array": Case(arrays(minItems=1), "give items, or strict=False"),
    "quote in a pattern": Case(strings(pattern='^a"$'), "JSON writes it with an escape", '"a""'),
    "backslash in a pattern": Case(strings(pattern=r"^a\\b$"), "JSON writes it with an escape", r'"a\b"'),
    "line end in a pattern": Case(strings(pattern=r"^a\n$"), "JSON writes it with an escape", '"a\n"'),
    "control character in a class": Case(strings(pattern=r"^[\x00-\x1f]$"), "asks for", '"\x01"'),
    "anchor inside a pattern": Case(strings(pattern="^a$b$"), "has '$' at character 3, in the middle", '"ab"'),
    "escape without a meaning": Case(regex(r"\Aa\Z"), r"has '\\A' at character 1, which is an escape", refuses="a"),
    "named class": Case(regex("[[:alpha:]]"), "is a named class", ":]", "a"),
    "octal number": Case(regex(r"\012"), "an octal number", refuses="\n"),
}
"""What the library compiles without doing what was asked for, or compiles to something without an end."""


@pytest.mark.parametrize("name", REFUSED)
def test_what_is_not_enforced_is_refused_with_its_path(name: str) -> None:
    case = REFUSED[name]
    message = refusal(case.spec)
    assert message is not None
    place = "the expression" if case.spec.kind == "regex" else "$"
    assert message.startswith(f"invalid grammar: {case.spec.kind}: {place}")
    assert case.says in message


@pytest.mark.parametrize("name", [name for name, case in REFUSED.items() if case.admits or case.refuses])
def test_the_library_still_does_not_enforce_it(name: str) -> None:
    case = REFUSED[name]
    if case.admits is not None:
        assert library_accepts(case.spec, case.admits)
    if case.refuses is not None:
        assert not library_accepts(case.spec, case.refuses)


WARNED = {
    "unknown format": Case(strings(format="color"), "$.format is 'color', which is not enforced", '"x"'),
    "oneOf that overlaps": Case(json_({"oneOf": OVERLAPPING}), "$.oneOf has branches that may overlap", "3"),
    "pattern without anchors": Case(
        strings(pattern="[0-9]"), "$.pattern is not anchored with ^ and $; the whole string", refuses='"a1"'
    ),
    "patternProperties without anchors": Case(
        objects(patternProperties={"^x": {}}), '$.patternProperties["^x"] is not anchored', refuses='{"xa":1}'
    ),
    "anchor in the middle": Case(regex("a$b"), "the expression has '$' at character 2, in the middle", "ab"),
    "dot": Case(regex("a.b"), "the expression has '.', which matches the ends of lines", "a\nb"),
    "unknown keyword": Case(strings(maxlength=3), "$.maxlength is no keyword of JSON Schema", '"abcd"'),
}


@pytest.mark.parametrize("name", WARNED)
def test_what_is_held_to_less_or_more_than_asked_is_warned_of(name: str) -> None:
    case = WARNED[name]
    [warning] = check(case.spec)
    assert warning.startswith(f"{case.spec.kind}: ")
    assert case.says in warning
    assert case.admits is None or library_accepts(case.spec, case.admits)
    assert case.refuses is None or not library_accepts(case.spec, case.refuses)


CONTRADICTIONS = {
    "not JSON": GrammarSpec("json", "{"),
    "root": GrammarSpec("json", "[1]"),
    "false": json_(False),
    "type": json_({"type": "text"}),
    "empty enum": json_({"enum": []}),
    "bounds": integers(minimum=5, maximum=3),
    "open bounds": integers(exclusiveMinimum=3, exclusiveMaximum=4),
    "fraction": integers(minimum=1.5),
    "lengths": strings(minLength=3, maxLength=2),
    "items": arrays(items={}, minItems=3, maxItems=1),
    "too few items": arrays(prefixItems=[{}, {}], maxItems=1),
    "too few properties": objects(properties=A_INTEGER, minProperties=2),
    "too many required": objects(properties=A_INTEGER, required=["a"], maxProperties=0),
    "dangling": json_({"$ref": "#/$defs/a"}),
    "items as a list": arrays(items=[{}]),
    "true in prefixItems": arrays(prefixItems=[True]),
    "number that is not finite": GrammarSpec("json", '{"const": 1e999}'),
    "half a character": GrammarSpec("json", r'{"const": "\ud800"}'),
    "parenthesis": regex("(a"),
    "closing parenthesis": regex("a)"),
    "class": regex("[a"),
    "empty class": regex("[]a]"),
    "escape": regex("a\\"),
    "reference": regex(r"(a)\1"),
    "Unicode class": regex(r"\p{L}"),
    "boundary": regex(r"\ba"),
    "flags": regex("(?i)a"),
    "Python's named group": regex("(?P<n>a)"),
    "atomic group": regex("(?>a)"),
    "lookahead": regex("a(?!b)"),
    "lookbehind": regex("(?<=a)b"),
    "null": regex("a\0"),
    "not a list": GrammarSpec("choice", '"a"'),
    "empty list": GrammarSpec("choice", "[]"),
    "not a text": GrammarSpec("choice", "[1]"),
}


@pytest.mark.parametrize("name", CONTRADICTIONS)
def test_what_the_library_refuses_is_refused_earlier_with_a_path(name: str) -> None:
    message = refusal(CONTRADICTIONS[name])
    assert message is not None
    assert ": $" in message or ": the " in message or "Unicode" in message
    assert library_refusal(CONTRADICTIONS[name]) is not None


LEFT_TO_THE_LIBRARY = [
    ebnf('a ::= "a"'),
    ebnf("root ::= missing"),
    ebnf('root ::= "a'),
    regex("a{5,2}"),
    regex("a**"),
    regex("a{x}"),
    GrammarSpec.structural_tag({}),
]


@pytest.mark.parametrize("spec", LEFT_TO_THE_LIBRARY, ids=lambda spec: spec.source)
def test_syntax_is_left_to_the_library(spec: GrammarSpec) -> None:
    assert check(spec) == ()
    assert library_refusal(spec) is not None
