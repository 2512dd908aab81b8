"""Planning a step together with the other ranks of a data-parallel group, or alone.

All ranks run the same kind of step. Whatever they decide before a step comes out of reductions, never of what one rank
alone knows, so that every rank holds the same reductions.
"""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np

from thalweg.interfaces import Communicator, Scheduler, StepKind, StepPlan, VoteRound


@dataclass(frozen=True, slots=True)
class GroupFlags:
    """What is true of some rank of the group."""

    unfinished: bool
    """A sequence, or something else to wait for, is left."""
    running: bool
    half_prefilled: bool


def share_flags(scheduler: Scheduler, communicator: Communicator | None = None, has_more: bool = False) -> GroupFlags:
    """Put the flags of all ranks together: one reduction. has_more: this rank has work that its scheduler cannot see."""
    mine = (scheduler.has_unfinished or has_more, scheduler.has_running, scheduler.has_half_prefilled)
    if communicator is None:
        return GroupFlags(*mine)
    return GroupFlags(*map(bool, communicator.all_reduce_max(np.array(mine, np.int32)).tolist()))


def plan_step(
    scheduler: Scheduler, communicator: Communicator | None = None, flags: GroupFlags | None = None
) -> StepPlan:
    """Plan the next step. flags: of `share_flags` in this iteration; without them they are shared first.

    A won vote that yields no prefill anywhere (no blocks, no slots) becomes a decode step, or it would repeat for ever.
    """
    flags = share_flags(scheduler, communicator) if flags is None else flags
    ballot = scheduler.begin_step(flags.running, flags.half_prefilled)
    if ballot.round is VoteRound.PREFILL:
        if ballot.wants:
            scheduler.try_prefill()
        return scheduler.finish_step(StepKind.PREFILL)
    if ballot.round == VoteRound.NONE or not _agree(communicator, ballot.round, ballot.wants):
        return scheduler.finish_step(StepKind.DECODE)
    has_prefill = ballot.wants and scheduler.try_prefill()
    is_prefill = _agree(communicator, VoteRound.ANY, has_prefill)
    return scheduler.finish_step(StepKind.PREFILL if is_prefill else StepKind.DECODE)


def run_local_vote(scheduler: Scheduler) -> StepPlan:
    """Plan the next step of a scheduler that is the only rank of its data-parallel group."""
    return plan_step(scheduler)


def _agree(communicator: Communicator | None, vote: VoteRound, yes: bool) -> bool:
    """Whether all ranks (ALL) or some rank (ANY) says yes: one reduction, a minimum in either case."""
    if communicator is None:
        return yes
    sign = -1 if vote == VoteRound.ANY else 1
    return bool(communicator.all_reduce_min(np.array([sign * yes], np.int32))[0] * sign)
