"""A small vocabulary that can say everything: every byte, and some longer tokens; and tables that speak it."""

from __future__ import annotations

from functools import cache

import tokenizers
from tokenizers import decoders, models, pre_tokenizers

from drafts_testing.bench import EOS
from drafts_testing.tables import Memory, Tables
from thalweg.engine.tokenizer import Tokenizer
from thalweg.structured import Vocabulary

BEGIN, PAD = 0, 2
_MARKS = ("<begin>", "<end>", "<pad>")
FIRST_BYTE = len(_MARKS)
LONGER = (
    *('{"', '":', '": ', '", "', '"}', '"]', '",', "}}", "]]", "[]", "{}", "},", "], "),
    *("true", "false", "null", "True", "10", "-1", "0.5", "ab", "abc", "ba", "name", "value", "kind", " = ", "\\n"),
    *("日", "本", "ß", "ä", "名前", "größe", "</", "think", "()", "[1", "foo", "bar", "-0", "99", "20", "::"),
)
"""Texts of the tokens after those of the bytes."""
VOCAB = FIRST_BYTE + 256 + len(LONGER)


@cache
def tokenizer() -> Tokenizer:
    """Byte-level, without merges: a text is encoded byte by byte."""
    spelling = pre_tokenizers.ByteLevel(add_prefix_space=False, use_regex=False)
    names = [*_MARKS, *(_spelled_byte(byte) for byte in range(256))]
    names += [spelling.pre_tokenize_str(text)[0][0] for text in LONGER]
    library = tokenizers.Tokenizer(models.BPE({name: token for token, name in enumerate(names)}, []))
    library.add_special_tokens(list(_MARKS))
    library.pre_tokenizer = spelling
    library.decoder = decoders.ByteLevel()
    return Tokenizer(library, bos_token_id=BEGIN, eos_token_id=EOS, pad_token_id=PAD, vocab_size=VOCAB)


@cache
def vocabulary() -> Vocabulary:
    """The same for grammars."""
    made = Vocabulary.from_tokenizer(tokenizer().library_tokenizer, vocab_size=VOCAB, end_token_id=EOS)
    assert len(set(made.tokens)) == VOCAB, "two tokens say the same"
    return made


def ids(text: str) -> list[int]:
    """Token ids of a text, byte by byte."""
    return [FIRST_BYTE + byte for byte in text.encode()]


def id_of(text: str) -> int:
    """The one token of a text: a mark, a byte, or one of the longer ones."""
    if text in _MARKS:
        return _MARKS.index(text)
    return FIRST_BYTE + 256 + LONGER.index(text) if text in LONGER else ids(text)[0]


def tables(seed: int) -> Tables:
    """Logits after every text that tend to end what was begun; bytes that are no letter by themselves are rare."""
    made = Tables.random(VOCAB, seed, Memory.EVERYTHING, spread=2.0)
    for token, text in enumerate(vocabulary().tokens):
        if token < FIRST_BYTE:
            continue
        if not text.strip():
            made.logits[:, token] -= 5
        elif not text.isascii() or text < b" ":
            made.logits[:, token] -= 6
        elif not text.strip(b'"}])'):
            made.logits[:, token] += 4
    made.logits[:, EOS] += 6
    return made


def _spelled_byte(byte: int) -> str:
    """How byte-level tokenizers write a byte: those that cannot be printed are moved up."""
    printed = [*range(33, 127), *range(161, 173), *range(174, 256)]
    return (
        chr(byte) if byte in printed else chr(256 + [other for other in range(256) if other not in printed].index(byte))
    )
