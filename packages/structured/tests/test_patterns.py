"""Patterns inside of JSON strings: what the library gets wrong, and gets right as they are spelled for it."""

from __future__ import annotations

import itertools
import json
import re
from random import Random

import pytest
from lint_testing.outputs import random_output
from lint_testing.random_schemas import pattern as random_pattern
from lint_testing.verdicts import schema_refusal
from matcher_testing.vocabularies import BYTES_END, byte_info

from thalweg.interfaces import GrammarSpec, RequestError
from thalweg.structured import GrammarMatcher
from thalweg.structured.compile import compile_grammar
from thalweg.structured.library import Grammar
from thalweg.structured.patterns import respelled, respelled_source, respelled_tag

MISTAKES = {
    "a letter lets a dot end the string": ("^é.$", '"é""'),
    "a letter that is escaped lets it": (r"^\é.$", '"é""'),
    "a letter lets a class end the string": ("^é[!-~]$", '"é""'),
    "a bracket lets a dot end the string": ("^].$", '"]""'),
    "the end of an optional group comes alone": ("^a(-[0-9]+)?$", '"a12"'),
    "the beginning of an optional group comes alone": ("^(a*0)?b$", '"aab"'),
}


@pytest.mark.parametrize("name", MISTAKES)
def test_a_mistake_of_the_library_is_gone_around(name: str) -> None:
    pattern, text = MISTAKES[name]
    schema = json.dumps({"type": "string", "pattern": pattern})
    compiled = compile_grammar(GrammarSpec.json(schema), byte_info())
    assert not accepts(GrammarMatcher(compiled), text)
    assert respelled(pattern) != pattern
    assert accepts(raw_matcher(schema), text)


def raw_matcher(schema: str) -> GrammarMatcher:
    """Of what the library makes of a schema by itself."""
    from thalweg.structured.library import GrammarCompiler

    compiler = GrammarCompiler(byte_info(), max_threads=1, cache_enabled=False)
    return GrammarMatcher(compiler.compile_grammar(Grammar.from_json_schema(schema)))


def accepts(matcher: GrammarMatcher, text: str) -> bool:
    return all(matcher.accept(byte) for byte in text.encode()) and matcher.accept(BYTES_END)


SPELLINGS = {
    "": "",
    "^[a-z]+(?:x|y)*$": "^[a-z]+(?:x|y)*$",
    "a?[b]?": "a?[b]?",
    "(ab)?": "(ab){0,1}",
    "(ab)??": "(ab){0,1}?",
    "(ab)*?": "(ab)*?",
    "é[à-é谷]": r"\u{e9}[\u{e0}-\u{e9}\u{8c37}]",
    "]": r"\]",
    "[]": "[]",
    "😀{2}": r"\u{1f600}{2}",
    "[^é-]": r"[^\u{e9}-]",
    r"\é(?<n>é)?": r"\u{e9}(?<n>\u{e9}){0,1}",
    r"\d\s\.\/": r"\d\s\.\/",
}


@pytest.mark.parametrize("pattern", SPELLINGS)
def test_only_what_is_mistaken_is_spelled_in_another_way(pattern: str) -> None:
    assert respelled(pattern) == SPELLINGS[pattern]
    assert respelled(respelled(pattern)) == respelled(pattern)


ALPHABET = "ab0é-]"


@pytest.mark.parametrize(
    "pattern",
    [
        "^a-?(é0+)?b*$",
        r"^(a|é){1,2}b?$",
        "^[é0]{2}(a0*)?$",
        "^(a]|b(0a?)?|é.)$",
        "^[^éa]{0,2}$",
        "^(?:(0b{1,3})?b|a)$",
        "^(a|-b+)?0$",
        "^(0b+|a)?b$",
        "^(?:(a*)0)?b$",
        "^[0-9]+(-[0-9]+)?$",
        "^((0b+)?)?b$",
        "^(]b*)?é(a*-)?]$",
    ],
)
def test_exactly_the_texts_that_match_are_admitted(pattern: str) -> None:
    assert schema_refusal({"type": "string", "pattern": pattern}) is None
    matcher = GrammarMatcher(compile_grammar(GrammarSpec.json({"type": "string", "pattern": pattern}), byte_info()))
    for length in range(5):
        for letters in itertools.product(ALPHABET, repeat=length):
            text = "".join(letters)
            assert accepts(matcher.fresh(), f'"{text}"') == (re.fullmatch(pattern, text) is not None), text


def test_what_random_patterns_admit_matches_them() -> None:
    rng = Random(5)
    num_outputs = 0
    for _ in range(150):
        pattern = random_pattern(rng)
        spec = GrammarSpec.json({"type": "string", "pattern": pattern})
        if schema_refusal({"type": "string", "pattern": pattern}) is not None:
            continue
        try:
            matcher = GrammarMatcher(compile_grammar(spec, byte_info()))
        except RequestError:
            continue
        for _ in range(4):
            output = random_output(matcher.fresh(), rng, longest=60)
            if output is not None:
                num_outputs += 1
                assert re.search(pattern, json.loads(output)), (pattern, output)
    assert num_outputs > 200


def test_patterns_are_found_wherever_a_schema_may_stand() -> None:
    bad, good = "(a)?", "(a){0,1}"

    def schema(pattern: str) -> dict[str, object]:
        return {
            "properties": {"pattern": {"type": "string", "pattern": pattern}, "const": {"pattern": pattern}},
            "patternProperties": {pattern: {"items": {"pattern": pattern}}},
            "propertyNames": {"pattern": pattern},
            "anyOf": [{"prefixItems": [{"pattern": pattern}]}],
            "$defs": {"enum": {"pattern": pattern}},
            "const": {"pattern": bad},
            "enum": [{"pattern": bad}],
            "default": {"pattern": bad},
        }

    assert json.loads(respelled_source(json.dumps(schema(bad)))) == schema(good)
    tag = {"type": "structural_tag", "format": {"elements": [{"type": "json_schema", "json_schema": schema(bad)}]}}
    tag["pattern"] = bad
    found = json.loads(respelled_tag(json.dumps(tag)))
    assert found["format"]["elements"][0]["json_schema"] == schema(good)
    assert found["pattern"] == bad


@pytest.mark.parametrize("source", ["{", "pattern", '{"type": "integer"}', "[" * 5000 + '"pattern"', '"\\u'])
def test_a_source_without_patterns_or_without_json_stays_as_it_is(source: str) -> None:
    assert respelled_source(source) == source
    assert respelled_tag(source + "json_schema") == source + "json_schema"
