from __future__ import annotations

import hashlib
import json

import numpy as np
import pytest
from service_testing.grammars import quick
from service_testing.vocabularies import small_vocabulary, token_of

from thalweg.interfaces import ConfigError, GrammarSpec
from thalweg.structured import GrammarMatcher, Vocabulary, compile_grammar
from thalweg.structured.library import TokenizerInfo
from thalweg.structured.service import shipping


@pytest.fixture(scope="module")
def vocabulary() -> Vocabulary:
    return small_vocabulary()


@pytest.fixture(scope="module")
def info(vocabulary: Vocabulary) -> TokenizerInfo:
    return vocabulary.tokenizer_info()


@pytest.fixture(scope="module")
def packed(vocabulary: Vocabulary, info: TokenizerInfo) -> bytes:
    return shipping.pack(compile_grammar(quick(), info), quick(), vocabulary)


def with_head(packed: bytes, **changes: str) -> bytes:
    line, _, body = packed.partition(b"\n")
    start = line.index(b"{")
    return line[:start] + json.dumps({**json.loads(line[start:]), **changes}).encode() + b"\n" + body


def test_a_grammar_that_was_shipped_has_the_same_masks(
    packed: bytes, vocabulary: Vocabulary, info: TokenizerInfo
) -> None:
    original = GrammarMatcher(compile_grammar(quick(), info))
    copy = GrammarMatcher(shipping.unpack(packed, quick(), vocabulary, info))
    for character in "abbc0":
        masks = np.zeros((2, 40), np.int32)
        original.fill_bitmask(masks, 0)
        copy.fill_bitmask(masks, 1)
        assert (masks[0] == masks[1]).all()
        assert original.accept(token_of(character))
        assert copy.accept(token_of(character))


@pytest.mark.parametrize("name", ["xgrammar", "serialization", "vocabulary"])
def test_another_origin_is_refused_by_name(
    packed: bytes, vocabulary: Vocabulary, info: TokenizerInfo, name: str
) -> None:
    with pytest.raises(ConfigError, match=f"made with {name} 'other'; here it is '{shipping.origin(vocabulary)[name]}"):
        shipping.unpack(with_head(packed, **{name: "other"}), quick(), vocabulary, info)


def test_a_vocabulary_of_the_same_size_with_other_texts_is_another_one(packed: bytes) -> None:
    """The library's own check compares only the size and the end token."""
    other = small_vocabulary("v")
    with pytest.raises(ConfigError, match="made with vocabulary"):
        shipping.unpack(packed, quick(), other, other.tokenizer_info())


def test_the_grammar_of_another_specification_is_refused(
    packed: bytes, vocabulary: Vocabulary, info: TokenizerInfo
) -> None:
    with pytest.raises(ConfigError, match="made with specification"):
        shipping.unpack(packed, quick(1), vocabulary, info)
    with_trigger = GrammarSpec.regex(quick().source, trigger_token_ids=[1])
    assert shipping.unpack(packed, with_trigger, vocabulary, info), "the trigger is the matcher's"


@pytest.mark.parametrize("cut", [0, 5, 30, -1])
def test_cut_bytes_are_refused(packed: bytes, vocabulary: Vocabulary, info: TokenizerInfo, cut: int) -> None:
    with pytest.raises(ConfigError, match="compiled grammar"):
        shipping.unpack(packed[:cut], quick(), vocabulary, info)


def test_changed_bytes_are_refused(packed: bytes, vocabulary: Vocabulary, info: TokenizerInfo) -> None:
    with pytest.raises(ConfigError, match="checksum"):
        shipping.unpack(packed[:-10] + b"0" + packed[-9:], quick(), vocabulary, info)
    line = packed.partition(b"\n")[0]
    magic = line[: line.index(b"{")]
    for first in (line[:-1], magic + b"[]", magic + b"null", magic + b"[" * 100_000, magic + b"\xff"):
        with pytest.raises(ConfigError, match="first line cannot be read"):
            shipping.unpack(first + b"\n", quick(), vocabulary, info)


def test_what_the_library_cannot_read_is_refused_in_words(
    packed: bytes, vocabulary: Vocabulary, info: TokenizerInfo
) -> None:
    for body in (b"{}", b"[]", b"\xff"):
        head = with_head(packed, sha256=hashlib.sha256(body).hexdigest()).partition(b"\n")[0]
        with pytest.raises(ConfigError, match="the compiled grammar does not fit"):
            shipping.unpack(head + b"\n" + body, quick(), vocabulary, info)
