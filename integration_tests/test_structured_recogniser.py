"""The checker of EBNF texts, checked itself."""

from __future__ import annotations

import itertools
import random
import re

import pytest

from structured_testing.earley import Recogniser
from structured_testing.grammars import GRAMMARS


@pytest.mark.parametrize("name", GRAMMARS)
def test_examples_of_the_corpus_are_told_apart(name: str) -> None:
    grammar = GRAMMARS[name]
    recogniser = Recogniser(grammar.source)
    assert [text for text in grammar.members if not recogniser.accepts(text)] == []
    assert [text for text in grammar.others if recogniser.accepts(text)] == []


@pytest.mark.parametrize(
    ("ebnf", "pattern"),
    [
        ('root ::= "a"* "b"? | "c"', r"a*b?|c"),
        ('root ::= ("a" | "bc"){2,3}', r"(a|bc){2,3}"),
        ("root ::= [ab]{2} [^a]", r"[ab]{2}[^a]"),
        ('root ::= x{0,2} "c"{1,}\nx ::= "a" | ""', r"a{0,2}c+"),
        ('root ::= (x | "b")* \nx ::= x "a" | "c"', r"(ca*|b)*"),
        ('root ::= a a "b"\na ::= b b\nb ::= "a"?', r"a{0,4}b"),
    ],
)
def test_it_agrees_with_regular_expressions_on_every_short_text(ebnf: str, pattern: str) -> None:
    recogniser = Recogniser(ebnf)
    for length in range(6):
        for letters in itertools.product("abc", repeat=length):
            text = "".join(letters)
            assert recogniser.accepts(text) == bool(re.fullmatch(pattern, text)), text


def test_left_recursion_right_recursion_and_ambiguity_make_no_difference() -> None:
    ways = ('root ::= root "a" | "a"', 'root ::= "a" root | "a"', 'root ::= root root | "a"')
    for source in ways:
        assert [length for length in range(12) if Recogniser(source).accepts("a" * length)] == list(range(1, 12))


def test_rules_that_stand_for_nothing_through_each_other_end() -> None:
    recogniser = Recogniser('root ::= one two root | "x" | ""\none ::= two?\ntwo ::= one one | "y"?')
    assert all(recogniser.accepts(text) for text in ("", "x", "yyx", "y"))
    assert not recogniser.accepts("xx")


def test_a_damaged_member_of_a_language_without_redundancy_is_none() -> None:
    recogniser = Recogniser(GRAMMARS["as many"].source)
    chance = random.Random(3)
    for _ in range(50):
        text = list("a" * 6 + "b" * 6)
        del text[chance.randrange(len(text))]
        assert not recogniser.accepts("".join(text))


@pytest.mark.parametrize(
    ("source", "message"),
    [
        ('root ::= "a', "cannot read"),
        ('root ::= ("a"', "expected mark"),
        ("root ::= other", "no rule other"),
        ('rule ::= "a"', "no rule root"),
        ('root ::= "a"\nroot ::= "b"', "twice"),
        ('"a"', "expected rule"),
    ],
)
def test_grammars_that_it_cannot_read_are_errors(source: str, message: str) -> None:
    with pytest.raises(ValueError, match=message):
        Recogniser(source)
