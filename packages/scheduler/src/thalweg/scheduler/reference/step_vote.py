"""Prefill or decode: which vote a step holds, and what this rank says in it.

All ranks of a data-parallel group run the same kind of step, because their experts work together. Decode is the
rule; every so many decode steps the group may agree on a prefill. Engines that only prefill or only decode never vote.
"""

from __future__ import annotations

from thalweg.interfaces import VoteRound
from thalweg.scheduler.config import WATERMARK
from thalweg.scheduler.reference.state import State


def choose_round(state: State, anyone_running: bool, anyone_half_prefilled: bool) -> VoteRound:
    """The vote of this step, from numbers that all ranks share. An ANY vote wins over an ALL vote."""
    config, decode_step = state.config, state.decode_step
    if state.is_prompt_engine:
        return VoteRound.PREFILL
    if state.is_completion_engine:
        return VoteRound.NONE
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

    New prompts stay out while the pool is nearly full, so that running sequences can grow; an engine that only prefills
    has none that grow. A half-prefilled prompt may be the very reason for a full pool and always goes on.
    """
    head = state.waiting.head()
    if head is None or not head.is_schedulable:
        return False
    if state.is_prompt_engine or (state.is_default and head.blocks):
        return True
    return state.memory.usage <= WATERMARK
