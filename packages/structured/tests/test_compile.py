"""Each kind of grammar admits what its source says, and what is wrong with a source is said in plain words."""

from __future__ import annotations

import json

import pytest
from hypothesis import example, given, settings
from hypothesis import strategies as st
from matcher_testing.masks import says
from matcher_testing.vocabularies import BYTES_END, byte_info, golden_info

from thalweg.interfaces import GrammarSpec, RequestError
from thalweg.structured import Vocabulary, compile_grammar
from thalweg.structured import compile as compile_module
from thalweg.structured.compile import choices_of

PAIR = {"type": "object", "properties": {"a": {"type": "integer"}, "b": {}}, "required": ["a", "b"]}


def admits(spec: GrammarSpec, text: str) -> bool:
    return says(spec, byte_info(), text.encode(), BYTES_END)


@pytest.mark.parametrize(
    ("spec", "good", "bad"),
    [
        (GrammarSpec.regex("[a-c]{2}é?"), ["ab", "ccé"], ["a", "abc", "ab "]),
        (GrammarSpec.ebnf('root ::= "x" root | "y"'), ["y", "xxxy"], ["x", "yx"]),
        (GrammarSpec.choice(["yes", "no", "n"]), ["yes", "no", "n"], ["ye", "non", ""]),
        (GrammarSpec.json({"enum": ["a", 1, None]}), ['"a"', "1", "null"], ["a", "2"]),
        (GrammarSpec.json(True), ['{"a": [1, {}]}', "-2.5e3"], ["{", "01"]),
        (
            GrammarSpec.structural_tag(
                {
                    "type": "structural_tag",
                    "format": {
                        "type": "tag",
                        "begin": "<",
                        "content": {"type": "regex", "pattern": "[0-9]+"},
                        "end": ">",
                    },
                }
            ),
            ["<1>", "<23>"],
            ["<>", "1", "<1"],
        ),
    ],
    ids=lambda value: value.kind if isinstance(value, GrammarSpec) else "",
)
def test_a_grammar_admits_its_language(spec: GrammarSpec, good: list[str], bad: list[str]) -> None:
    assert [text for text in good if not admits(spec, text)] == []
    assert [text for text in bad if admits(spec, text)] == []


def test_a_grammar_whose_first_mask_takes_too_long_is_refused(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(compile_module, "MAX_FIRST_MASK_S", 0.0)
    with pytest.raises(RequestError, match=r"^too slow: regex: the first mask of the grammar takes .* at most 0 s"):
        compile_grammar(GrammarSpec.regex("a+"), golden_info())


SPACING = {
    "compact": '{"a":1,"b":[2,3]}',
    "one space": '{"a": 1, "b": [2, 3]}',
    "two spaces": '{"a":  1,  "b": [2, 3]}',
    "indented": json.dumps({"a": 1, "b": [2, 3]}, indent=2),
    "40 blanks": '{"a":' + " " * 40 + '1,"b":2}',
}


@pytest.mark.parametrize(
    ("options", "admitted"),
    [
        ({"any_whitespace": False}, ["one space"]),
        ({"max_whitespace": 0}, ["compact"]),
        ({"max_whitespace": 1}, ["compact", "one space"]),
        ({"max_whitespace": 2}, ["compact", "one space", "two spaces"]),
        ({"max_whitespace": 32}, ["compact", "one space", "two spaces", "indented"]),
        ({"max_whitespace": None}, [*SPACING]),
    ],
    ids=str,
)
def test_white_space_is_as_free_as_the_options_say(options: dict[str, int | bool | None], admitted: list[str]) -> None:
    spec = GrammarSpec("json", json.dumps(PAIR), **options)  # type: ignore[arg-type]
    assert [name for name, text in SPACING.items() if admits(spec, text)] == admitted


def test_strict_schemas_have_no_members_that_they_do_not_declare() -> None:
    schema = json.dumps({"type": "object", "properties": {"a": {"type": "integer"}}})
    for strict in (True, False):
        spec = GrammarSpec("json", schema, strict=strict)
        assert admits(spec, '{"a": 1}')
        assert admits(spec, '{"a": 1, "z": 2}') is not strict


@settings(max_examples=25, deadline=None)
@given(st.lists(st.text(min_size=1, max_size=6), min_size=1, max_size=4))
@example(['quote " and \\ slash', "line\nend", "\0x", "\x7f", "\U0001f682", "a | b", "[a-z]*", "\u2028", "{1}"])
def test_choices_are_taken_literally(choices: list[str]) -> None:
    spec = GrammarSpec.choice(choices)
    assert [choice for choice in choices if not admits(spec, choice)] == []
    others = {choice + "x" for choice in choices} | {choice[:-1] for choice in choices}
    assert [other for other in others - {*choices} if admits(spec, other)] == []


@pytest.mark.parametrize(
    ("source", "message"),
    [
        ("[", "not JSON"),
        ("[" * 10**6, "not JSON"),
        ("{}", "is not a list of strings"),
        ("[]", "is not a list of strings"),
        ('["a", 1]', "is not a list of strings"),
        ('["\\ud800"]', "is not valid Unicode"),
    ],
    ids=["cut", "deep", "object", "empty", "number", "surrogate"],
)
def test_choices_that_are_no_list_of_texts_are_refused(source: str, message: str) -> None:
    with pytest.raises(RequestError, match=f"invalid grammar: choice: .*{message}"):
        choices_of(source)


@pytest.mark.parametrize(
    ("spec", "message"),
    [
        (
            GrammarSpec("regex", "(a"),
            "invalid grammar: regex: Regex parsing error .*: The parenthesis is not closed",
        ),
        (GrammarSpec("ebnf", "root ::= foo"), 'invalid grammar: ebnf: EBNF parser error .*Rule "foo" is not defined'),
        (GrammarSpec("json", '{"type": "strin"}'), 'invalid grammar: json: Unsupported type "strin"'),
        (GrammarSpec("json", "{"), "invalid grammar: json: Failed to parse JSON"),
        (GrammarSpec("json", '{"$ref": "#"}'), "invalid grammar: json: Circular"),
        (GrammarSpec("structural_tag", "{}"), "invalid grammar: structural_tag: .*must have a format field"),
    ],
    ids=lambda value: value.kind if isinstance(value, GrammarSpec) else "",
)
def test_what_the_library_refuses_is_told_in_its_words_without_its_sources(spec: GrammarSpec, message: str) -> None:
    with pytest.raises(RequestError, match=message) as raised:
        compile_grammar(spec, byte_info())
    assert "/project" not in str(raised.value)
    assert "Check failed" not in str(raised.value)


def test_messages_stay_short_for_long_sources() -> None:
    with pytest.raises(RequestError) as raised:
        compile_grammar(GrammarSpec("json", '{"type": "' + "x" * 10_000 + '"}'), byte_info())
    assert len(str(raised.value)) < 600


def test_memory_that_runs_out_is_told_apart(monkeypatch: pytest.MonkeyPatch) -> None:
    from thalweg.structured import compile as module

    def fail(_: GrammarSpec) -> None:
        raise RuntimeError("std::bad_alloc")

    monkeypatch.setitem(module._READ, "regex", fail)  # type: ignore[arg-type]
    with pytest.raises(RequestError, match=r"^out of memory: regex: std::bad_alloc$"):
        compile_grammar(GrammarSpec.regex("a"), byte_info())


@pytest.mark.parametrize("regex", ["é", "x"])
def test_a_grammar_that_the_vocabulary_cannot_begin_is_refused(regex: str) -> None:
    info = Vocabulary((b"", b"a"), 40, 0).tokenizer_info()
    with pytest.raises(RequestError, match="invalid grammar: regex: no token of the vocabulary can begin it"):
        compile_grammar(GrammarSpec.regex(regex), info)


def test_compiling_twice_gives_the_same_grammar() -> None:
    for spec in (GrammarSpec.json(PAIR), GrammarSpec.regex("[A-C]{1,9}"), GrammarSpec.choice(["yes", "no"])):
        first, second = (compile_grammar(spec, golden_info()).serialize_json() for _ in range(2))
        assert first == second
