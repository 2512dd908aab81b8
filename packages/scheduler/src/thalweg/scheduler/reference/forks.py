"""Forking: a new sequence that goes on from where another one is."""

from __future__ import annotations

from collections import deque
from operator import index

from thalweg.interfaces import RequestError
from thalweg.scheduler.reference.requests import INT32_MAX
from thalweg.scheduler.reference.sequence import Sequence
from thalweg.scheduler.reference.state import State


def fork_sequence(state: State, parent: Sequence, child_id: int, last_token_id: int | None) -> Sequence | None:
    """The child in its queue, or None when memory is short now. The parent is unfinished.

    A decoding parent has a child that is ready to decode. A half-prefilled one has a child whose prefill goes on; it
    holds blocks, as its parent does, and goes before it. The child of a parent that owns nothing owns nothing.
    """
    _check_moment(state, parent)
    is_decoding = parent in state.running or parent in state.prompted
    if is_decoding and state.is_prompt_engine:
        raise RequestError(f"sequence {parent.sequence_id} is decoding; a prefill-only engine cannot continue a fork")
    if last_token_id is not None:
        last_token_id = index(last_token_id)
        _check_last_token(parent, is_decoding, last_token_id)
    child = _child_of(parent, child_id)
    if last_token_id is not None:
        child.token_ids[-1] = last_token_id
    if parent.blocks and not state.memory.share(parent, child):
        return None
    if is_decoding:
        state.prompted.append(child)
    else:
        state.waiting.push_front(child)
    return child


def _check_moment(state: State, parent: Sequence) -> None:
    """What the device holds of the parent must be what the scheduler thinks, give or take one decode step."""
    if len(state.in_flight) > 1:
        raise RuntimeError(f"fork: step {state.in_flight[0].step} has to be processed first; two are unprocessed")
    if parent in state.sequences_in_prefill:
        raise RuntimeError(f"fork: sequence {parent.sequence_id} is part of a prefill that was not processed yet")
    if parent.blocks and not parent.is_schedulable:
        raise RuntimeError(f"fork: sequence {parent.sequence_id} is still being loaded")


def _check_last_token(parent: Sequence, is_decoding: bool, last_token_id: int) -> None:
    if not is_decoding or parent.num_output == 0:
        raise RequestError(
            f"last_token_id is {last_token_id}; only the last output token of a decoding sequence may be replaced"
        )
    if not 0 <= last_token_id <= INT32_MAX:
        raise RequestError(f"last_token_id is {last_token_id}; it must be 0 or more and fit int32")


def _child_of(parent: Sequence, child_id: int) -> Sequence:
    return Sequence(
        sequence_id=child_id,
        token_ids=list(parent.token_ids),
        prompt_length=parent.prompt_length,
        max_tokens=parent.max_tokens,
        eos_token_id=parent.eos_token_id,
        ignore_eos=parent.ignore_eos,
        checkpoints=deque(parent.checkpoints),
        is_schedulable=parent.is_schedulable,
        structured_status=parent.structured_status,
        num_computed=parent.num_computed,
    )
