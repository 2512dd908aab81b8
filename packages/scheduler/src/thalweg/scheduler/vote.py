"""What the ranks of a data-parallel group agree on before each step: who has work, and whether to prefill.

Every rank calls these functions once per step, with or without work. They hold 1, 2 or 3 reductions, equally many on
every rank: what decides whether a reduction is held is a number that all ranks share, never a rank's own state.
"""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np

from thalweg.interfaces import Communicator, Scheduler, StepKind, StepPlan, VoteRound


@dataclass(frozen=True, slots=True)
class GroupFlags:
    """What is true of some rank of the group."""

    unfinished: bool
    """It has work left, so all ranks go on stepping."""
    running: bool
    """It has a sequence that decodes."""
    half_prefilled: bool
    """It has a prompt that is partly computed."""


def share_flags(scheduler: Scheduler, communicator: Communicator | None = None, has_more: bool = False) -> GroupFlags:
    """One reduction over the group; without a communicator the flags are this rank's own.

    has_more: the rank has work that its scheduler does not know of, such as a grammar under construction.
    """
    own = (scheduler.has_unfinished or has_more, scheduler.has_running, scheduler.has_half_prefilled)
    if communicator is None:
        return GroupFlags(*own)
    shared = communicator.all_reduce_max(np.array(own, np.int32))
    return GroupFlags(*(bool(flag) for flag in shared))


def plan_step(
    scheduler: Scheduler, communicator: Communicator | None = None, flags: GroupFlags | None = None
) -> StepPlan:
    """Plan the next step, of the same kind on every rank; flags: as shared for this step, None = share them now.

    When the communicator raises, the step stays open. Aborts still reach every sequence, and `finish_step` ends the
    step (as a prefill if one was prepared), so that what is left can be planned without the group.
    """
    if flags is None:
        flags = share_flags(scheduler, communicator)
    ballot = scheduler.begin_step(flags.running, flags.half_prefilled)
    if ballot.round == VoteRound.PREFILL:
        scheduler.try_prefill()
        return scheduler.finish_step(StepKind.PREFILL)
    if not _is_won(ballot.round, ballot.wants, communicator):
        return scheduler.finish_step(StepKind.DECODE)
    # Slots or blocks may be exhausted. If nobody got a prefill, an empty one would only repeat the vote for ever.
    has_prefill = ballot.wants and scheduler.try_prefill()
    is_prefill = _any_rank(has_prefill, communicator)
    return scheduler.finish_step(StepKind.PREFILL if is_prefill else StepKind.DECODE)


def _is_won(vote: VoteRound, wants: bool, communicator: Communicator | None) -> bool:
    if vote == VoteRound.NONE:
        return False
    return _all_ranks(wants, communicator) if vote == VoteRound.ALL else _any_rank(wants, communicator)


def _all_ranks(flag: bool, communicator: Communicator | None) -> bool:
    if communicator is None:
        return flag
    return bool(communicator.all_reduce_min(np.array([flag], np.int32))[0])


def _any_rank(flag: bool, communicator: Communicator | None) -> bool:
    return not _all_ranks(not flag, communicator)
