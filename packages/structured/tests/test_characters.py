"""Masks let no character through that JSON or UTF-8 forbids."""

from __future__ import annotations

import json

import numpy as np
import pytest

from thalweg.interfaces import GrammarSpec
from thalweg.structured import Vocabulary, compile_grammar
from thalweg.structured.characters import narrowed
from thalweg.structured.library import Grammar, GrammarMatcher

BYTES = Vocabulary((b"", *(bytes([byte]) for byte in range(256)), b"\xed\xa0\x80", b"\xed\x9f\xbf"), 259, 0)
SURROGATE, LAST_BEFORE_SURROGATES = 257, 258
END = 0


def allowed_after(spec: GrammarSpec, text: bytes) -> set[int]:
    """Token ids allowed next. Token id of a byte: 1 more than the byte."""
    matcher = GrammarMatcher(compile_grammar(spec, BYTES.tokenizer_info()))
    assert all(matcher.accept_token(1 + byte) for byte in text)
    mask = np.zeros((1, -(-BYTES.vocab_size // 32)), np.int32)
    matcher.fill_next_token_bitmask(mask)
    return set(np.flatnonzero(np.unpackbits(mask.view(np.uint8), bitorder="little")).tolist())


STRINGS = {
    "any length": ({"type": "string"}, b'"'),
    "at most 8": ({"type": "string", "maxLength": 8}, b'"'),
    "at least 2": ({"type": "string", "minLength": 2}, b'"a'),
    "2 to 8": ({"type": "string", "minLength": 2, "maxLength": 8}, b'"abc'),
    "a name": ({"type": "object", "propertyNames": {"maxLength": 3}, "additionalProperties": True}, b'{"'),
    "pattern": ({"type": "string", "pattern": "^[^a]{3}$"}, b'"b'),
    "any JSON": (True, b'["'),
}


@pytest.mark.parametrize("name", STRINGS)
def test_strings_have_no_raw_control_character(name: str) -> None:
    schema, text = STRINGS[name]
    allowed = allowed_after(GrammarSpec.json(schema), text)
    assert 1 + ord("x") in allowed
    assert [byte for byte in range(0x20) if 1 + byte in allowed] == []


@pytest.mark.parametrize("name", [name for name in STRINGS if name != "pattern"])
def test_strings_have_no_surrogate(name: str) -> None:
    schema, text = STRINGS[name]
    allowed = allowed_after(GrammarSpec.json(schema), text)
    assert LAST_BEFORE_SURROGATES in allowed
    assert SURROGATE not in allowed


@pytest.mark.parametrize("spec", [GrammarSpec.regex("[^a]+"), GrammarSpec.ebnf("root ::= [^a] [^a]*")])
def test_negated_classes_have_no_surrogate_and_keep_everything_else(spec: GrammarSpec) -> None:
    for text in (b"", b"b"):
        allowed = allowed_after(spec, text)
        assert LAST_BEFORE_SURROGATES in allowed
        assert SURROGATE not in allowed
        assert {1 + byte for byte in range(128)} - allowed == {1 + ord("a")}


def test_a_grammar_without_such_classes_is_left_alone() -> None:
    grammar = Grammar.from_regex("[a-z]{3}")
    assert narrowed(grammar) is grammar


def test_texts_of_a_schema_pass_unchanged() -> None:
    texts = ["straße und mehr", 'quote " and \\', "line\nend\x01", "\U0010ffff", "x41"]
    matcher = GrammarMatcher(compile_grammar(GrammarSpec.json({"enum": texts}), BYTES.tokenizer_info()))
    for text in texts:
        matcher.reset()
        said = json.dumps(text, ensure_ascii=False).encode()
        assert all(matcher.accept_token(1 + byte) for byte in said), text
        assert matcher.accept_token(END), text
