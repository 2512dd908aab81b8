"""Regular expressions and grammars: what is accepted, and how much of it."""

from __future__ import annotations

import pytest
from lint_testing.verdicts import library_refusal, refusal, schema_refusal

from thalweg.interfaces import GrammarSpec
from thalweg.structured.lint import check

ORDINARY = [
    "[0-9]{3}-[0-9]{4}",
    "(?:ab|c)*d+?",
    "(?<year>[0-9]{4})",
    r"\d+\.\d{2}|\w\W\s\S\D",
    r"\x41\u0042\u{1F600}\t\n\r\f\v\0\cA\e\a",
    r"[\]\-a^$.|(){}*+?]",
    "[[a]",
    "谷[豈-鶴]{2}é",
    "}]a]",
    "(^a|^b$)",
    "^(^a$)?$",
    "()|",
    r"\/\-\.\^\$\é",
    "[a-]",
    "a{2,}",
    "[^a]",
    "((a))" * 100,
]


@pytest.mark.parametrize("pattern", ORDINARY)
def test_ordinary_expressions_pass_without_a_warning(pattern: str) -> None:
    assert check(GrammarSpec.regex(pattern)) == ()
    assert library_refusal(GrammarSpec.regex(pattern)) is None


@pytest.mark.parametrize(
    ("pattern", "message"),
    [
        ("ab(c(?=d))", "the expression has '(?=' at character 5, which looks at the text around it"),
        ("(?<!a)b", "has '(?<!' at character 1"),
        ("(?#note)a", "which is not supported; groups are ( ), (?: ) and (?<name> )"),
        ("(?<na-me>a)", "groups are"),
        ("(a)(b)\\2", "has '\\\\2' at character 7, which is a reference to a group"),
        ("a\\u12", "is not followed by the digits"),
        ("a\\ud800", "is no character of Unicode"),
        ("a\\u{110000}", "is no character of Unicode"),
        ("[a\\q]", "is an escape without a meaning here"),
        ("[^]", "write ] as \\]"),
        ("[a", "write ] as \\]"),
        ("(()", "has '(' at character 4, which is not closed by )"),
        ("a{10001}", "makes 10001 repetitions"),
        ("(a{100}b){101}", "makes 10100 repetitions with those around it; at most 10000 do"),
        ("((a{10}){10,11}){100}", "makes 11000 repetitions"),
        ("(x|(a{200}|b)c){51}", "makes 10200 repetitions"),
        ("a{" + "9" * 5000 + "}", "makes 1000000000 repetitions"),
        ("(" * 65 + "a" + ")" * 65, "is nested deeper than 64"),
        ("ab|" * 5001, "makes more than 10000 pieces"),
        ("[" + "ab" * 6000 + "]", "is longer than 10000 characters"),
    ],
    ids=lambda value: value[:30],
)
def test_an_expression_is_refused_with_the_place_in_it(pattern: str, message: str) -> None:
    assert message in (refusal(GrammarSpec.regex(pattern)) or "")
    assert message.removeprefix("the expression ") in (
        schema_refusal({"type": "string", "pattern": f"^{pattern}$"}) or ""
    ) or ("at character" in message)


@pytest.mark.parametrize(
    "pattern", ["a{10000}", "(a{100}b){100}", "(a{0})" * 2, "(a*){10000}", "a{5000}b{5000}c{9999}"]
)
def test_repetitions_beside_each_other_do_not_multiply(pattern: str) -> None:
    assert refusal(GrammarSpec.regex(pattern)) is None


@pytest.mark.parametrize(
    ("pattern", "places"),
    [
        ("^a|^b$|c$", []),
        ("((^a|b)$)", []),
        ("a^", [2]),
        ("a$b", [2]),
        ("(a$)b", [3]),
        ("(a$|b)c", [3]),
        ("a(^b)", [3]),
        ("(^a)(^b)", [6]),
        ("$a", [1]),
        ("$^", [2]),
        ("(a$)*", [3]),
        ("^$", []),
        ("^^a$$", []),
    ],
)
def test_anchors_are_warned_of_where_they_would_have_a_meaning(pattern: str, places: list[int]) -> None:
    warnings = check(GrammarSpec.regex(pattern))
    assert [f"at character {place}, in the middle" in text for text, place in zip(warnings, places, strict=True)] == [
        True
    ] * len(places)


@pytest.mark.parametrize(
    ("grammar", "message"),
    [
        ('root ::= "a"{10001}', "repeats 10001 times at character 13"),
        ('root ::= ("a"{2,200} "b"){60}', "repeats 12000 times"),
        ("root ::= " + "(" * 65 + '"a"' + ")" * 65, "groups nested deeper than 64"),
        ('root ::= "a"{' + "9" * 5000 + "}", "repeats 1000000000 times"),
        ('root ::= "a"{ 3 , 10001 }', "repeats 10001 times"),
    ],
    ids=lambda value: value[:30],
)
def test_a_grammar_that_repeats_too_much_is_refused(grammar: str, message: str) -> None:
    assert message in (refusal(GrammarSpec.ebnf(grammar)) or "")


@pytest.mark.parametrize(
    "grammar",
    [
        '# {99999}\nroot ::= "{99999}" [{99999}] # {99999}',
        'root ::= "a"{100} b{100} c\nb ::= "x"{9999}\nc ::= ("y"{100}){100}',
        'root ::= "\\"{99999}" ("a" | "b")*',
    ],
)
def test_what_only_looks_like_repetition_is_accepted(grammar: str) -> None:
    assert check(GrammarSpec.ebnf(grammar)) == ()
