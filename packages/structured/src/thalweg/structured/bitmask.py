"""Reading masks of tokens: bit i % 32 of word i // 32 says whether token i is allowed."""

from __future__ import annotations

import numpy as np
from numpy.typing import NDArray


def is_allowed(mask: NDArray[np.int32], token_id: int) -> bool:
    """Whether a mask [words] has the token; one outside of it is not allowed."""
    return 0 <= token_id < 32 * len(mask) and bool(mask[token_id // 32] >> token_id % 32 & 1)


def allows_any(mask: NDArray[np.int32], vocab_size: int) -> bool:
    """Whether a mask [words] has a token below vocab_size; the bits above mean nothing."""
    full, rest = divmod(vocab_size, 32)
    return bool(mask[:full].any()) or bool(rest and mask[full] & (1 << rest) - 1)


def num_words(vocab_size: int) -> int:
    """Words of a mask."""
    return (vocab_size + 31) // 32
