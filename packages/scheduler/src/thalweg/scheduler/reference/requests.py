"""Turning what `add` and `add_loaded` were given into a sequence, or refusing it."""

from __future__ import annotations

from collections import deque
from collections.abc import Sequence as SequenceOf
from operator import index

import numpy as np
from numpy.typing import NDArray

from thalweg.interfaces import RequestError
from thalweg.scheduler.reference.sequence import Sequence

INT32_MAX = (1 << 31) - 1


def new_sequence(
    sequence_id: int,
    token_ids: NDArray[np.int32],
    *,
    max_tokens: int,
    eos_token_id: int,
    ignore_eos: bool,
    checkpoints: SequenceOf[int],
    is_schedulable: bool,
    is_structured: bool,
    prompt_length: int | None = None,
) -> Sequence:
    """A waiting sequence that owns nothing. Raises RequestError naming the argument, its value and what is accepted.

    prompt_length: tokens from there on are output; None = there is none. A number that is no integer is a TypeError, as
    in the C++ core: it would only come to light in a later step.
    """
    tokens = _checked_tokens(token_ids)
    max_tokens, eos_token_id = index(max_tokens), index(eos_token_id)
    prompt_length = len(tokens) if prompt_length is None else index(prompt_length)
    if not 1 <= prompt_length <= len(tokens):
        raise RequestError(f"prompt_length is {prompt_length}; with {len(tokens)} tokens it must be 1 to {len(tokens)}")
    if not 1 <= max_tokens <= INT32_MAX:
        raise RequestError(f"max_tokens is {max_tokens}; it must be at least 1 and fit int32")
    if len(tokens) - prompt_length >= max_tokens:
        raise RequestError(f"max_tokens is {max_tokens}; there are {len(tokens) - prompt_length} output tokens already")
    positions = [index(position) for position in checkpoints]
    for low, high in zip([0, *positions], positions, strict=False):
        if low >= high:
            raise RequestError(f"checkpoints contain {high} after {low}; they must be positive and ascending")
    return Sequence(
        sequence_id=sequence_id,
        token_ids=tokens,
        prompt_length=prompt_length,
        max_tokens=max_tokens,
        eos_token_id=eos_token_id,
        ignore_eos=ignore_eos,
        checkpoints=deque(positions),
        is_schedulable=is_schedulable,
        structured_status=int(is_structured),
    )


def _checked_tokens(token_ids: NDArray[np.int32]) -> list[int]:
    array = np.asarray(token_ids)
    if array.ndim != 1 or array.size == 0:
        raise RequestError(f"token_ids has shape {array.shape}; it must be [L] with L >= 1")
    if array.dtype.kind not in "iu":
        raise RequestError(f"token_ids has dtype {array.dtype}; it must be an integer array")
    if array.min() < 0 or array.max() > INT32_MAX:
        raise RequestError(f"token_ids go from {array.min()} to {array.max()}; they must be 0 or more and fit int32")
    tokens: list[int] = array.tolist()
    return tokens
