"""Vocabularies give every token its bytes, keep markers out of text, and travel whole."""

from __future__ import annotations

import random
import struct

import numpy as np
import pytest
import tokenizers
from matcher_testing.masks import tokens_of
from matcher_testing.vocabularies import (
    PUBLISHED_END,
    PUBLISHED_SIZE,
    golden_vocabulary,
    published_info,
    published_tokenizer,
    published_vocabulary,
)
from tokenizers import decoders, models, pre_tokenizers

from thalweg.interfaces import ConfigError, GrammarSpec
from thalweg.structured import GrammarMatcher, Vocabulary, compile_grammar
from thalweg.structured.vocabulary.spelling import byte_level


def test_tokens_of_a_published_tokenizer_are_the_bytes_of_its_texts() -> None:
    tokenizer, vocabulary = published_tokenizer(), published_vocabulary()
    texts = [
        "Ada Lovelace",
        "straße 東京 🚂",
        '{"a": [1, 2.5e-3]}\n\t',
        "naïve\u00a0\u200b",
        "".join(map(chr, range(1, 256))),
    ]
    for text in texts:
        token_ids = tokenizer.encode(text, add_special_tokens=False).ids
        assert b"".join(vocabulary.tokens[token_id] for token_id in token_ids) == text.encode()


def test_every_byte_is_a_token_of_a_published_tokenizer() -> None:
    assert {bytes([byte]) for byte in range(256)} <= set(published_vocabulary().tokens)


def test_the_byte_level_alphabet_is_that_of_the_tokenizer_library() -> None:
    split = pre_tokenizers.ByteLevel(add_prefix_space=False, use_regex=False)
    for text in (*map(chr, range(1, 256)), "日本", "\U0001f682"):
        [(spelled, _)] = split.pre_tokenize_str(text)
        assert byte_level(spelled) == text.encode()
    assert len(pre_tokenizers.ByteLevel.alphabet()) == 256


ANYWHERE = [
    (GrammarSpec.json({"type": "string"}), '"'),
    (GrammarSpec.json(True), '{"a": "b'),
    (GrammarSpec.regex("(.|\n)*"), ""),
    (GrammarSpec.ebnf("root ::= [^a]*"), "x"),
]


@pytest.mark.parametrize(("spec", "text"), ANYWHERE, ids=[spec.kind + text for spec, text in ANYWHERE])
def test_no_grammar_over_text_allows_an_added_token(spec: GrammarSpec, text: str) -> None:
    matcher = GrammarMatcher(compile_grammar(spec, published_info()))
    assert all(
        matcher.accept(token_id) for token_id in published_tokenizer().encode(text, add_special_tokens=False).ids
    )
    bitmask = np.zeros((1, PUBLISHED_SIZE // 32), np.int32)
    matcher.fill_bitmask(bitmask, 0)
    allowed = set(tokens_of(bitmask[0], PUBLISHED_SIZE))
    added = published_vocabulary().added_ids
    assert len(allowed) > 100_000
    assert len(added) == 1283
    assert allowed & added <= {PUBLISHED_END}
    for token_id in random.Random(0).sample(sorted(added - {PUBLISHED_END}), 5):
        assert not matcher.accept(token_id)


def plain_tokenizer(decoder: object) -> tokenizers.Tokenizer:
    """Text at 0 to 2 and 6, added tokens at 4 and 5, of which one is special."""
    tokenizer = tokenizers.Tokenizer(models.WordLevel({"a": 0, "é": 1, "<unk>": 2, "b": 6}, unk_token="<unk>"))
    tokenizer.decoder = decoder
    tokenizer.add_special_tokens(["<end>"])
    tokenizer.add_tokens(["<call>"])
    return tokenizer


def test_tokens_of_plain_text_are_their_utf_8() -> None:
    vocabulary = Vocabulary.from_tokenizer(plain_tokenizer(decoders.Fuse()), vocab_size=8, end_token_id=4)
    assert vocabulary.tokens == (b"a", "é".encode(), b"<unk>", b"", b"<end>", b"<call>", b"b")
    assert vocabulary.added_ids == {4, 5}


def test_an_added_token_stands_over_one_of_text_with_its_id() -> None:
    tokenizer = tokenizers.Tokenizer(models.WordLevel({"a": 0, "<unk>": 1, "b": 3}, unk_token="<unk>"))
    tokenizer.decoder = decoders.Fuse()
    tokenizer.add_tokens(["<call>"])
    vocabulary = Vocabulary.from_tokenizer(tokenizer, vocab_size=4, end_token_id=1)
    assert (vocabulary.tokens[3], vocabulary.added_ids) == (b"<call>", {3})


def test_ids_beyond_the_logits_are_left_out() -> None:
    vocabulary = Vocabulary.from_tokenizer(plain_tokenizer(decoders.Fuse()), vocab_size=2, end_token_id=1)
    assert (vocabulary.tokens, vocabulary.added_ids) == ((b"a", "é".encode()), frozenset())


@pytest.mark.parametrize("decoder", [None, decoders.ByteFallback(), decoders.WordPiece()])
def test_a_decoder_that_needs_more_than_one_token_at_a_time_is_refused(decoder: object) -> None:
    name = "none" if decoder is None else type(decoder).__name__
    with pytest.raises(ConfigError, match=f"decoder of the tokenizer is {name}; ByteLevel and Fuse are supported"):
        Vocabulary.from_tokenizer(plain_tokenizer(decoder), vocab_size=8, end_token_id=5)


@pytest.mark.parametrize(
    ("parts", "message"),
    [
        (((b"a", b"b"), 1, 0), "vocab_size is 1; there are 2 tokens"),
        (((b"a",), 4.0, 0), "vocab_size is 4.0; .* it must be an integer"),
        (((b"a",), 2**31, 0), "vocab_size is 2147483648; .* to 2147483647"),
        (((b"a",), 4, 0.0), "end_token_id is 0.0"),
        (((b"a",), 4, True), "end_token_id is True"),
        (((b"a",), 4, 4), "end_token_id is 4; it must be 0 to 3"),
        (((b"a",), 4, -1), "end_token_id is -1; it must be 0 to 3"),
        (((b"a", "b"), 4, 0), "token 'b' is str; tokens are bytes"),
        (((b"a",), 4, 0, {1}), "added id 1 is none of the 1 tokens"),
        (((b"a",), 4, 0, {"a"}), "added id 'a' is none"),
        (((b"a",), 4, 0, {-1}), "added id -1 is none of the 1 tokens"),
    ],
)
def test_parts_that_contradict_each_other_are_refused(parts: tuple, message: str) -> None:  # type: ignore[type-arg]
    with pytest.raises(ConfigError, match=message):
        Vocabulary(*parts)


def test_a_vocabulary_arrives_as_it_was_sent() -> None:
    for sent in (golden_vocabulary(), published_vocabulary(), Vocabulary((), 3, 2)):
        arrived = Vocabulary.from_bytes(sent.to_bytes())
        assert (arrived.tokens, arrived.vocab_size, arrived.end_token_id, arrived.added_ids) == (
            sent.tokens,
            sent.vocab_size,
            sent.end_token_id,
            sent.added_ids,
        )
        assert arrived.fingerprint == sent.fingerprint


def test_fingerprints_tell_every_difference() -> None:
    vocabularies = [
        Vocabulary((b"ab", b"c"), 4, 0),
        Vocabulary((b"a", b"bc"), 4, 0),
        Vocabulary((b"abc",), 4, 0),
        Vocabulary((b"ab", b"c", b""), 4, 0),
        Vocabulary((b"ab", b"c"), 5, 0),
        Vocabulary((b"ab", b"c"), 4, 1),
        Vocabulary((b"ab", b"c"), 4, 0, frozenset({1})),
        Vocabulary((b"c", b"ab"), 4, 0),
    ]
    assert len({vocabulary.fingerprint for vocabulary in vocabularies}) == len(vocabularies)


def test_bytes_that_are_no_vocabulary_are_refused() -> None:
    sent = golden_vocabulary().to_bytes()
    huge = sent[:21] + struct.pack("<4Q", 2**63, 1, 2**62, 0) + sent[53:]
    for damaged in (b"", b"x" * 100, sent[:40], sent[:-1], sent + b"x", sent[1:], huge):
        with pytest.raises(ConfigError, match="vocabulary"):
            Vocabulary.from_bytes(damaged)
    for cut in range(0, len(sent), 7):
        with pytest.raises(ConfigError):
            Vocabulary.from_bytes(sent[:cut])


def test_the_lowest_of_equal_tokens_is_the_id_of_a_text() -> None:
    vocabulary = Vocabulary((b"<x>", b"a", b"a", b"", b"<x>"), 5, 3, frozenset({0}))
    assert vocabulary.ids == {b"a": 1, b"<x>": 4}
    assert vocabulary.added_texts == {"<x>": 0}
