"""Prefill or decode: which vote a step holds, and what this rank says in it.

All ranks of a data-parallel group run the same kind of step, because their experts work together. Decode is the
rule; every so many decode steps the group may agree on a prefill.
"""

from __future__ import annotations

from thalweg.interfaces import VoteRound
from thalweg.scheduler.config import WATERMARK
from thalweg.scheduler.reference.state import State


def choose_round(state: State, anyone_running: bool, anyone_half_prefilled: bool) -> VoteRound:
    """The vote of this step, from numbers that all ranks share. An ANY vote wins over an ALL vote."""
    config, decode_step = state.config, state.decode_step
    if state.is_default and not anyone_running:
        # Nobody would decode anything: waiting for the interval only burns empty steps.
        return VoteRound.ANY
    if decode_step > 0:
        if decode_step % config.prefill_interval_any == 0:
            return VoteRound.ANY
        if state.is_default and anyone_half_prefilled and decode_step % config.prefill_interval_continue == 0:
            return VoteRound.ANY
    return VoteRound.ALL if decode_step % config.prefill_interval_all == 0 else VoteRound.NONE


def wants_prefill(state: State) -> bool:
    """Whether this rank has a prompt it may work on.

    New prompts stay out while the pool is nearly full, so that running sequences can grow. A half-prefilled prompt
    may be the very reason for that and always goes on.
    """
    below_watermark = state.memory.usage <= WATERMARK
    if not state.is_default:
        head = state.waiting.head()
        return below_watermark and head is not None and head.is_schedulable
    for sequence in state.waiting:
        if sequence.is_finished:
            continue
        return sequence.is_schedulable and (bool(sequence.blocks) or below_watermark)
    return False
