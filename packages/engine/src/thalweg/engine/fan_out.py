"""Several outputs of one prompt: it is computed once, then every output goes on in a sequence of its own.

Until then the outputs share one sequence: its owner has it in the request table, the others are the owner's
followers. The step that ends the prompt draws a first token for each of them. The scheduler continues the sequence with
one of these tokens, the leader's, and forks it for the others. Seeds are fixed from the start, so each output is what a
request of its own would get.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import dataclass, replace

import numpy as np

from thalweg.engine.inflight import Collected, InflightStep
from thalweg.engine.outputs import OutputState
from thalweg.engine.requests import RequestState, RequestTable
from thalweg.engine.sampling_row import SamplingRow, SequenceToSample
from thalweg.interfaces import InvariantError, Scheduler, SequenceStatus, StepKind, StepOutcome, StepPlan


@dataclass(frozen=True, slots=True)
class FirstToken:
    """What the end of a shared prompt drew for one of its outputs."""

    output: OutputState
    sample: int
    """Its place among the N rows of the plan and the X siblings after them."""
    token_id: int
    is_broken: bool
    """The token means nothing."""


@dataclass(frozen=True, slots=True)
class Branching:
    """A shared sequence whose prompt a step has ended."""

    row: int
    request: RequestState
    leader: FirstToken
    others: tuple[FirstToken, ...]
    rest: tuple[OutputState, ...]
    """Outputs for which nothing was drawn."""


@dataclass(frozen=True, slots=True)
class Branch:
    """An output that left a shared sequence."""

    request: RequestState
    first: FirstToken
    status: int
    """0 = goes on in a sequence of its own, else the final `SequenceStatus` that its token brings."""


class FanOut:
    """Gives the outputs of a request their sequences.

    eos_token_id: ends an output unless its request ignores it.
    """

    def __init__(self, scheduler: Scheduler, table: RequestTable, eos_token_id: int) -> None:
        self._scheduler = scheduler
        self._table = table
        self._eos_token_id = eos_token_id

    def queue(self, request: RequestState, outputs: Sequence[OutputState]) -> None:
        """Let the prompt be computed for these outputs, which have no sequence."""
        sequence_id = self._scheduler.add(
            np.array(request.prompt_token_ids, np.int32),
            max_tokens=request.params.max_tokens,
            eos_token_id=self._eos_token_id,
            ignore_eos=request.params.ignore_eos,
        )
        outputs[0].followers = list(outputs[1:])
        self._table.place(request, outputs[0], sequence_id)

    def sequences_to_sample(self, plan: StepPlan) -> list[SequenceToSample]:
        """What the sampler must know about each row; the end of a shared prompt has siblings.

        An output may have ended since its row was planned: in the step in flight, or aborted by a callback.
        """
        ends_prompt = _ends_prompt(plan)
        # More could not run: one slot is the null slot, one the owner's.
        num_siblings = max(self._scheduler.state_slots.capacity - 2, 0)
        sequences = []
        for row, sequence_id in enumerate(plan.sequence_ids.tolist()):
            found = self._table.by_sequence(sequence_id)
            if found is None:
                sequences.append(SequenceToSample(SamplingRow.neutral()))
                continue
            request, output = found
            sequences.append(request.to_sample(output, num_siblings if ends_prompt[row] else 0))
            num_siblings -= len(sequences[-1].siblings)
        return sequences

    def branch(self, step: InflightStep, collected: Collected) -> tuple[Collected, list[Branching]]:
        """Choose who goes on in the shared sequences whose prompts have ended, and give the scheduler their tokens.

        It is the first output that its token does not end, since a sequence that has ended cannot be forked.
        """
        if step.plan.kind is StepKind.DECODE:
            return collected, []
        num_siblings = sum(len(sequence.siblings) for sequence in step.sequences)
        if collected.sibling_ids.size != num_siblings:
            raise InvariantError(
                f"step {step.plan.step} drew {collected.sibling_ids.size} first tokens for {num_siblings} outputs"
            )
        branchings = list(self._branchings(step, collected))
        sampled = collected.result.sampled_token_ids.copy()
        for branching in branchings:
            sampled[branching.row] = branching.leader.token_id
        return replace(collected, result=replace(collected.result, sampled_token_ids=sampled)), branchings

    def fork(self, step: InflightStep, branchings: Sequence[Branching], outcome: StepOutcome) -> list[Branch]:
        """After the scheduler has processed the step: sequences for all others, unless their first token is their last.

        Returns those that have their place now. Who found no memory draws again when the prompt has been computed once
        more; equal seeds at equal positions give the same token.
        """
        branches: list[Branch] = []
        for branching in branchings:
            request = branching.request
            parent_id = int(step.plan.sequence_ids[branching.row])
            leader_status = int(outcome.finish_reasons[branching.row])
            again = []
            for first in branching.others:
                status = SequenceStatus.FINISHED_STOPPED if self._ends(request, first) else leader_status
                if not status and not first.is_broken:
                    child_id = self._scheduler.fork(parent_id, last_token_id=first.token_id)
                    if child_id is None:
                        again.append(first.output)
                        continue
                    self._table.place(request, first.output, child_id)
                branches.append(Branch(request, first, status))
            again += branching.rest
            if again:
                self.queue(request, again)
        return branches

    def _branchings(self, step: InflightStep, collected: Collected) -> Iterator[Branching]:
        token_ids = [*collected.result.sampled_token_ids.tolist(), *collected.sibling_ids.tolist()]
        is_broken = collected.broken_rows.tolist()
        plan = step.plan
        ends_prompt = _ends_prompt(plan)
        end = plan.sequence_ids.size
        for row, sequence in enumerate(step.sequences):
            start, end = end, end + len(sequence.siblings)
            goes_on = ends_prompt[row] and row not in collected.grammar_failures
            found = self._table.by_sequence(int(plan.sequence_ids[row])) if goes_on else None
            if found is None or not found[1].followers:
                continue
            request, owner = found
            followers, owner.followers = owner.followers, []
            drawn = zip([owner, *followers], [row, *range(start, end)], strict=False)
            firsts = [FirstToken(output, sample, token_ids[sample], is_broken[sample]) for output, sample in drawn]
            lasting = (first for first in firsts if not first.is_broken and not self._ends(request, first))
            leader = next(lasting, firsts[0])
            self._table.hand_over(request, owner, leader.output)
            others = tuple(first for first in firsts if first is not leader)
            yield Branching(row, request, leader, others, tuple(followers[end - start :]))

    def _ends(self, request: RequestState, first: FirstToken) -> bool:
        """Whether the scheduler would stop with this token; lengths are the same for all outputs."""
        return first.token_id == self._eos_token_id and not request.params.ignore_eos


def _ends_prompt(plan: StepPlan) -> list[bool]:
    """Of each row, whether it computes the last token of a prompt."""
    is_last: list[bool] = (plan.context_lengths >= plan.committed_lengths).tolist()
    return is_last if plan.kind is StepKind.PREFILL else [False] * len(is_last)
