"""What is used of xgrammar. Importing this module loads it, which takes seconds, and torch with it."""

from __future__ import annotations

import re
from collections.abc import Sequence
from importlib import metadata

from xgrammar import (
    CompiledGrammar,
    Grammar,
    GrammarCompiler,
    GrammarMatcher,
    TokenizerInfo,
    VocabType,
    get_serialization_version,
)

__all__ = [
    "CompiledGrammar",
    "Grammar",
    "GrammarCompiler",
    "GrammarMatcher",
    "TokenizerInfo",
    "get_serialization_version",
    "library_version",
    "make_tokenizer_info",
    "plain_message",
]

_WHERE = re.compile(r"^\[[\d:]+\] \S+:\d+: (Check failed: \(.*?\)( is false)?: )?", re.DOTALL)
_LONGEST = 500


_VERSION = metadata.version("xgrammar")
"""Read now: another one may be installed while this process runs."""


def library_version() -> str:
    """Of the xgrammar that is loaded."""
    return _VERSION


def make_tokenizer_info(tokens: Sequence[bytes], vocab_size: int, end_token_id: int) -> TokenizerInfo:
    """The library's own form of a vocabulary; empty tokens are never allowed."""
    return TokenizerInfo(list(tokens), VocabType.RAW, vocab_size=vocab_size, stop_token_ids=[end_token_id])


def plain_message(error: BaseException) -> str:
    """What the library says, without the time and the place in its sources, shortened."""
    text = _WHERE.sub("", str(error)).strip() or type(error).__name__
    return text if len(text) <= _LONGEST else f"{text[:_LONGEST]}..."
