"""Planning one step when there is nobody to vote with."""

from __future__ import annotations

from thalweg.interfaces import Scheduler, StepKind, StepPlan, VoteRound


def run_local_vote(scheduler: Scheduler) -> StepPlan:
    """Plan the next step of a scheduler that is the only rank of its data-parallel group.

    The group's answer is this rank's own, so an ALL vote and an ANY vote end alike. A won vote that yields no
    prefill (no blocks, no slots) becomes a decode step, or the vote would repeat for ever.
    """
    ballot = scheduler.begin_step(scheduler.has_running, scheduler.has_half_prefilled)
    if ballot.round != VoteRound.NONE and ballot.wants and scheduler.try_prefill():
        return scheduler.finish_step(StepKind.PREFILL)
    return scheduler.finish_step(StepKind.DECODE)
