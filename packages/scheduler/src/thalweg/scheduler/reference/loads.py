"""Sequences whose first cache entries somebody else fills: a store, or another engine."""

from __future__ import annotations

from operator import index

from thalweg.interfaces import RequestError
from thalweg.scheduler.reference.sequence import Sequence
from thalweg.scheduler.reference.state import State


def load_sequence(state: State, sequence: Sequence, num_computed_tokens: int) -> bool:
    """Give a new sequence its memory and a place in a queue. False, and nothing happens, when memory is short now.

    Raises RequestError for a sequence that could never run here.
    """
    num_computed_tokens = index(num_computed_tokens)
    is_ready = sequence.num_output > 0 and num_computed_tokens == sequence.length - 1
    _check(state, sequence, num_computed_tokens, is_ready)
    if not state.memory.can_start(sequence) or not state.memory.start(sequence):
        return False
    sequence.num_computed = num_computed_tokens
    if is_ready:
        state.prompted.append(sequence)
    else:
        state.waiting.append(sequence)
    return True


def _check(state: State, sequence: Sequence, num_computed_tokens: int, is_ready: bool) -> None:
    if not 0 <= num_computed_tokens < sequence.length:
        raise RequestError(
            f"num_computed_tokens is {num_computed_tokens}; with {sequence.length} tokens it must be "
            f"0 to {sequence.length - 1}"
        )
    if sequence.length > state.max_prompt_length:
        raise RequestError(f"{sequence.length} tokens are too long; a prompt has at most {state.max_prompt_length}")
    if state.memory.needs_more_than_all(sequence):
        raise RequestError(f"{sequence.length} tokens need more than all {state.memory.blocks.capacity - 1} blocks")
    if state.is_prompt_engine and is_ready:
        raise RequestError("the sequence is ready to decode; a prefill-only engine cannot continue it")
    if state.is_completion_engine and not is_ready:
        raise RequestError(
            f"num_computed_tokens is {num_computed_tokens}; a decode-only engine needs output tokens and all but the "
            f"last of {sequence.length} tokens computed"
        )
