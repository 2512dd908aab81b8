"""Masks as sets."""

from __future__ import annotations

import numpy as np
from numpy.typing import NDArray

from thalweg.interfaces import GrammarSpec, Matcher
from thalweg.structured import GrammarMatcher, compile_grammar


def tokens_of(mask: NDArray[np.int32], vocab_size: int) -> list[int]:
    """The tokens of a mask [words] by the definition of its bits."""
    bits = mask.view(np.uint32)
    return [token_id for token_id in range(vocab_size) if bits[token_id // 32] >> np.uint32(token_id % 32) & 1]


def allowed(matcher: Matcher, vocab_size: int) -> list[int]:
    """What a matcher allows next."""
    bitmask = np.full((3, -(-vocab_size // 32)), 0x55, np.int32)
    matcher.fill_bitmask(bitmask, 1)
    assert (bitmask[[0, 2]] == 0x55).all()
    return tokens_of(bitmask[1], vocab_size)


def says(spec: GrammarSpec, info: object, text: bytes, end: int) -> bool:
    """Whether the grammar takes the whole text, in a vocabulary whose first tokens are the bytes."""
    matcher = GrammarMatcher(compile_grammar(spec, info))  # type: ignore[arg-type]
    return all(matcher.accept(byte) for byte in text) and matcher.accept(end)
