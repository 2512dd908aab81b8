"""Sources that are made to hang, to overflow or to blow up whoever looks at them."""

from __future__ import annotations

import sys
import time

import pytest
from lint_testing.verdicts import refusal

from thalweg.interfaces import GrammarSpec, RequestError
from thalweg.structured.lint import check

SIZE = 256 * 1024
BUDGET_S = 2.0
"""Of processor time, for a slow machine that is busy; 0.05 to 0.25 s where it is not. Quadratic work takes minutes."""


def chain(count: int) -> str:
    links = ",".join(f'"{n}":{{"$ref":"#/$defs/{n + 1}"}}' for n in range(count))
    return f'{{"$ref":"#/$defs/0","$defs":{{{links},"{count}":{{"type":"null"}}}}}}'


HOSTILE = {
    "brackets": ("json", "[" * SIZE),
    "braces": ("json", '{"a":' * (SIZE // 5)),
    "deep const": ("json", '{"const":' + "[" * 100_000 + "]" * 100_000 + "}"),
    "many branches": ("json", '{"anyOf":[' + ",".join(["{}"] * 85_000) + "]}"),
    "many words": ("json", "{" + ",".join(f'"w{n}":{n}' for n in range(20_000)) + "}"),
    "many values": ("json", '{"enum":[' + ",".join(map(str, range(40_000))) + "]}"),
    "chain of references": ("json", chain(4_000)),
    "one schema in many places": (
        "json",
        '{"anyOf":['
        + ",".join(['{"$ref":"#/$defs/a"}'] * 4_900)
        + '],"$defs":{"a":{"type":"object","properties":{'
        + ",".join(f'"p{n}":{{"const":{n}}}' for n in range(90))
        + "}}}}",
    ),
    "discriminated": (
        "json",
        '{"oneOf":['
        + ",".join(f'{{"properties":{{"k":{{"const":{n}}}}},"required":["k"],"type":"object"}}' for n in range(2_400))
        + "]}",
    ),
    "long key with many members": (
        "json",
        '{"properties":{"' + "k" * 100_000 + '":{"anyOf":[' + ",".join(['{"title":1}'] * 4_900) + ',{"not":1}]}}}',
    ),
    "string": ("json", '"' + "a" * SIZE),
    "escapes": ("json", '{"const":"' + "\\u0041" * (SIZE // 6) + '"}'),
    "backslashes": ("json", '"' + "\\" * SIZE),
    "huge integer": ("json", '{"const":' + "9" * SIZE + "}"),
    "huge exponent": ("json", '{"type":"number","minimum":1e-' + "9" * 1000 + "}"),
    "patterns": (
        "json",
        '{"properties":{' + ",".join(f'"{n}":{{"type":"string","pattern":"^a*a*a*$"}}' for n in range(4_000)) + "}}",
    ),
    "nested repetition": ("regex", "(" * 60 + "a*" + ")*" * 60),
    "open groups": ("regex", "(a" * (SIZE // 2)),
    "escaped": ("regex", "\\d" * (SIZE // 2)),
    "open class": ("regex", "[" + "a" * SIZE),
    "closed class": ("regex", "[" + "a-z" * (SIZE // 3) + "]"),
    "anchors": ("regex", "^$" * (SIZE // 2)),
    "dots": ("regex", "." * SIZE),
    "braces of a regex": ("regex", "a{" * (SIZE // 2)),
    "quotes": ("ebnf", '"' * SIZE),
    "spaces in braces": ("ebnf", "{" + " " * SIZE),
    "many spaces in braces": ("ebnf", ("{" + " " * 500) * (SIZE // 501)),
    "names and spaces": ("ebnf", ("a" + " " * 500) * (SIZE // 501)),
    "classes": ("ebnf", "[" * SIZE),
    "parentheses": ("ebnf", "(" * SIZE),
    "choices": ("choice", "[" + ",".join(['"a"'] * 60_000) + "]"),
    "formats": ("structural_tag", '{"type":"plus","content":' * 200 + "{}" + "}" * 200),
    "repeated formats": ("structural_tag", '{"type":"repeat","max":9999,"content":' * 60 + "{}" + "}" * 60),
    "odd members": ("structural_tag", '{"type":["a"],"format":{"type":"regex","pattern":5,"max":"x"}}'),
}


@pytest.mark.parametrize("name", HOSTILE)
def test_a_hostile_source_is_looked_at_in_linear_time(name: str) -> None:
    kind, source = HOSTILE[name]
    spec = GrammarSpec(kind, source)
    begin = time.process_time()
    message = refusal(spec)
    assert time.process_time() - begin < BUDGET_S
    assert message is None or len(message) < 2_000


def test_looking_needs_no_deep_stack() -> None:
    limit = sys.getrecursionlimit()
    depth = 0
    frame = sys._getframe()
    while frame is not None:
        depth, frame = depth + 1, frame.f_back  # type: ignore[assignment]
    sys.setrecursionlimit(depth + 60)
    try:
        messages = [refusal(GrammarSpec(*HOSTILE[name])) for name in ("brackets", "chain of references", "open groups")]
    finally:
        sys.setrecursionlimit(limit)
    assert [message is None for message in messages] == [False, True, False]


@pytest.mark.parametrize(
    ("source", "message"),
    [
        ('{"a": 1, "a": 2}', "an object has the key 'a' twice"),
        ('{"const": {"b": 1, "b": 1}}', "an object has the key 'b' twice"),
        ('{"const": NaN}', "NaN is no number of JSON"),
        ('{"const": -Infinity}', "-Infinity is no number"),
        ('{"const": 1e999}', "the number '1e999' is too large"),
        ('{"const": ' + "9" * 401 + "}", "a number has 401 digits"),
        ('{"const": "\\ud800"}', "is not Unicode text"),
        ('{"properties": {"\\udfff": {}}}', "is not Unicode text"),
        ("[" * 257, "nested deeper than 256"),
        ("{} {}", "Extra data"),
        ("\ufeff{}", "BOM"),
        ("{'a': 1}", "the source is not JSON"),
    ],
    ids=lambda value: value[:30],
)
def test_what_is_no_json_or_has_two_readings_is_refused(source: str, message: str) -> None:
    assert message in (refusal(GrammarSpec("json", source)) or "")


def test_schemas_may_be_nested_64_deep() -> None:
    def nested(depth: int) -> GrammarSpec:
        return GrammarSpec("json", '{"items":' * (depth - 1) + "{}" + "}" * (depth - 1))

    assert refusal(nested(64)) is None
    assert "is nested deeper than 64 schemas" in (refusal(nested(65)) or "")


def test_only_so_many_warnings_are_given() -> None:
    schema = {"properties": {str(n): {"type": "string", "pattern": "a"} for n in range(50)}}
    warnings = check(GrammarSpec.json(schema))
    assert len(warnings) == 21
    assert warnings[-1] == "json: and 30 more"


@pytest.mark.parametrize("most", [1_000_001, 2**31, 10**30])
def test_a_limit_of_white_space_that_the_library_cannot_count_is_refused(most: int) -> None:
    check(GrammarSpec.json(True, max_whitespace=1_000_000))
    with pytest.raises(RequestError, match=r"\$ has max_whitespace .*; at most 1000000 is accepted"):
        check(GrammarSpec.json(True, max_whitespace=most))
