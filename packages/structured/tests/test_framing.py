"""Structural tags have the added tokens they ask for, where they ask for them, and no others."""

from __future__ import annotations

import json
from typing import Any

import pytest
from matcher_testing.masks import allowed

from thalweg.interfaces import GrammarSpec, RequestError
from thalweg.structured import GrammarMatcher, Vocabulary, compile_grammar
from thalweg.structured.vocabulary.framing import framing_of
from thalweg.structured.vocabulary.tokenizer_infos import TokenizerInfos

TOKENS = (b"<end>", b"<call>", b"</call>", b"<other>", b"{", b"}", b'"', b"a", b" ", b":", b"1", b"<", b"call", b">")
END, CALL, CALLED, OTHER, QUOTE, A = 0, 1, 2, 3, 6, 7
ADDED = frozenset({END, CALL, CALLED, OTHER})
SIZE = 18
VOCABULARY = Vocabulary(TOKENS, SIZE, END, ADDED)
STRING = {"type": "json_schema", "json_schema": {"type": "string"}}


def tag(format_: dict[str, Any]) -> GrammarSpec:
    return GrammarSpec.structural_tag({"type": "structural_tag", "format": format_})


def matcher_of(spec: GrammarSpec, infos: TokenizerInfos | None = None) -> GrammarMatcher:
    return GrammarMatcher(compile_grammar(*(infos or TokenizerInfos(VOCABULARY)).prepare(spec)))


def added_along(matcher: GrammarMatcher, token_ids: list[int]) -> list[set[int]]:
    """The added tokens allowed before each of the tokens, and after the last."""
    result = []
    for token_id in token_ids:
        result.append(ADDED & set(allowed(matcher, SIZE)))
        assert matcher.accept(token_id), token_id
    return [*result, ADDED & set(allowed(matcher, SIZE))]


@pytest.mark.parametrize(("begin", "end"), [(CALL, CALLED), ("<call>", "</call>"), (CALL, "</call>")])
def test_a_tag_of_tokens_has_them_at_its_ends_alone(begin: int | str, end: int | str) -> None:
    format_ = {
        "type": "tag",
        "begin": {"type": "token", "token": begin},
        "content": STRING,
        "end": {"type": "token", "token": end},
    }
    along = added_along(matcher_of(tag(format_)), [CALL, QUOTE, A, QUOTE, CALLED])
    assert along == [{CALL}, set(), set(), set(), {CALLED}, {END}]


def test_a_tag_of_text_may_be_written_by_its_added_tokens() -> None:
    format_ = {"type": "tag", "begin": "<call>", "content": STRING, "end": ["</call>", "}"]}
    along = added_along(matcher_of(tag(format_)), [CALL, QUOTE, A, QUOTE, CALLED])
    assert along == [{CALL}, set(), {CALL, CALLED}, {CALL, CALLED}, {CALLED}, {END}]


def test_text_around_other_text_counts() -> None:
    format_ = {"type": "tag", "begin": "a<call>a", "content": STRING, "end": ""}
    assert added_along(matcher_of(tag(format_)), [A, CALL, A])[1] == {CALL}


@pytest.mark.parametrize(
    "format_",
    [
        {"type": "any_text"},
        {"type": "regex", "pattern": "(.|\n)*"},
        {"type": "json_schema", "json_schema": {"const": "<call>"}},
        {"type": "sequence", "elements": [{"type": "const_string", "value": "a"}, {"type": "any_text"}]},
    ],
    ids=lambda format_: format_["type"],
)
def test_tags_that_ask_for_none_have_none(format_: dict[str, Any]) -> None:
    matcher = matcher_of(tag(format_))
    assert ADDED & set(allowed(matcher, SIZE)) <= {END}


def test_token_dispatch_reads_its_rules() -> None:
    format_ = {"type": "token_dispatch", "rules": [["<call>", STRING]], "exclude_tokens": ["a"]}
    matcher = matcher_of(tag(format_))
    assert {CALL, OTHER, A} & set(allowed(matcher, SIZE)) == {CALL}
    assert matcher.accept(CALL)
    assert allowed(matcher, SIZE) == [QUOTE]


def test_text_dispatch_reads_its_rules() -> None:
    format_ = {"type": "dispatch", "rules": [["<call>", STRING]]}
    assert framing_of(tag(format_).source, VOCABULARY).spelled == {CALL}


def test_the_end_token_is_never_text() -> None:
    format_ = {"type": "tag", "begin": "a", "content": STRING, "end": {"type": "token", "token": "<end>"}}
    framing = framing_of(tag(format_).source, VOCABULARY)
    assert (framing.spelled, framing.named) == (frozenset(), frozenset())
    matcher = matcher_of(tag(format_))
    for token_id in (A, QUOTE, QUOTE, END):
        assert matcher.accept(token_id)
    assert matcher.is_finished


def test_names_in_a_schema_are_not_those_of_a_tag() -> None:
    schema = {"type": "object", "properties": {"token": {"const": "no token"}, "begin": {"const": "<call>"}}}
    framing = framing_of(tag({"type": "json_schema", "json_schema": schema}).source, VOCABULARY)
    assert (framing.spelled, framing.named) == (frozenset(), frozenset())
    assert json.loads(framing.source)["format"]["json_schema"] == schema


@pytest.mark.parametrize("token", ["<unknown>", SIZE, -1, True, 1.5, None, {}, "\ud800"])
def test_a_token_that_the_vocabulary_lacks_is_refused(token: object) -> None:
    source = json.dumps({"type": "structural_tag", "format": {"type": "exclude_token", "exclude_tokens": [token]}})
    with pytest.raises(RequestError, match=r"^invalid grammar: structural_tag: token .* is not in the vocabulary"):
        framing_of(source, VOCABULARY)


@pytest.mark.parametrize("source", ["{", "[" * 10**6, '{"a":' * 10**6])
def test_a_tag_that_is_not_json_is_refused(source: str) -> None:
    with pytest.raises(RequestError, match="structural_tag: not JSON"):
        framing_of(source, VOCABULARY)


def test_tags_with_the_same_tokens_share_their_form_of_the_vocabulary() -> None:
    infos = TokenizerInfos(VOCABULARY)
    tags = [tag({"type": "tag", "begin": "<call>", "content": STRING, "end": end}) for end in ("a", "b", "</call>")]
    first, second, third = (infos.prepare(spec)[1] for spec in tags)
    assert first is second
    assert third is not first
    assert infos.prepare(GrammarSpec.regex("a"))[1] is infos.prepare(tag({"type": "any_text"}))[1]


def test_only_a_few_forms_are_kept() -> None:
    many = Vocabulary((*(f"<{n}>".encode() for n in range(9)), b"a"), 10, 0, frozenset(range(9)))
    infos = TokenizerInfos(many)
    tags = [tag({"type": "tag", "begin": f"<{n}>", "content": STRING, "end": "a"}) for n in range(1, 9)]
    first = infos.prepare(tags[0])[1]
    assert infos.prepare(tags[0])[1] is first
    for spec in tags[1:]:
        infos.prepare(spec)
    assert infos.prepare(tags[0])[1] is not first
