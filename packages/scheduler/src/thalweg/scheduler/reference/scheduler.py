"""The scheduler's public face: queue requests, plan steps, take results, give memory back."""

from __future__ import annotations

from collections.abc import Sequence as SequenceOf
from operator import index
from typing import Any

import numpy as np
from numpy.typing import NDArray

from thalweg.interfaces import (
    Ballot,
    BlockAllocator,
    ConfigError,
    RequestError,
    StepCorrection,
    StepKind,
    StepOutcome,
    StepPlan,
    StepResult,
    VerifyBudget,
)
from thalweg.scheduler.config import SchedulerConfig, Sizes
from thalweg.scheduler.flops import FlopsEstimator, FlopsModel
from thalweg.scheduler.reference.correct import check_query_lengths, correct_step
from thalweg.scheduler.reference.debug import describe
from thalweg.scheduler.reference.forks import fork_sequence
from thalweg.scheduler.reference.lifetimes import abort, end_hold
from thalweg.scheduler.reference.loads import load_sequence
from thalweg.scheduler.reference.plan import build_plan
from thalweg.scheduler.reference.planning import commit_decode, commit_prefill
from thalweg.scheduler.reference.post_process import process_step
from thalweg.scheduler.reference.prefill import plan_prefill
from thalweg.scheduler.reference.requests import new_sequence
from thalweg.scheduler.reference.results import check_result
from thalweg.scheduler.reference.sequence import Sequence
from thalweg.scheduler.reference.state import State
from thalweg.scheduler.reference.step_order import StepOrder
from thalweg.scheduler.reference.step_vote import choose_round, wants_prefill


class Scheduler:
    """Continuous batching over a paged cache and state slots.

    Satisfies `thalweg.interfaces.Scheduler`. A call out of order raises RuntimeError, a bad argument ValueError; both
    leave the scheduler as it was.

        synchronous     begin_step -> (try_prefill, when the vote was won and this rank wants one) -> finish_step
                        -> process
        asynchronous    begin_step ... finish_step of step N -> process N-1 -> correct N -> begin_step of N+1 ...
                        while N and N-1 are decode steps; a prefill step is processed before anything else is planned

    `release(step)` may come any time after `finish_step`; `add` and `abort` may come anywhere. What the contract
    leaves open is settled as follows, for this core and its C++ twin alike.

    - `has_unfinished`: a sequence stands in a queue (finished ones that the next step removes included), a plan waits
      for its result, or sources of copies are still pinned. `has_running` and `has_half_prefilled` count unfinished
      sequences only; everybody who waits and holds blocks is half-prefilled.
    - An aborted waiting sequence stays in its queue, owning nothing, until the next plan lists it as dropped; it does
      not count as a reason to prefill.
    - Dropped sequences are listed in this order: aborted ones (planning order of the queue, then those ready to decode,
      then those that a prefill-only engine did not hand over), then refused or preempted ones as planning met them.
      Token-less final records: finished ones first, then dropped ones.
    - A row that fails its grammar has a finish reason and no token. `closed_num_output_tokens` is the output length.
    - Prefill rows report one verified and one accepted token: the sampled one.
    - Preemption takes the memory of a held sequence too.
    """

    def __init__(
        self,
        config: SchedulerConfig,
        *,
        num_blocks: int,
        num_state_slots: int,
        block_size: int,
        draft_length: int = 0,
        tail_length: int = 1,
        vocab_size: int,
        context_parallel_size: int = 1,
        flops_model: FlopsModel | None = None,
        verify_budget: VerifyBudget | None = None,
    ) -> None:
        """Both pool sizes include the null id 0. Raises ConfigError when sizes and config contradict each other.

        flops_model: fills the plan's FLOPs, None = 0. verify_budget: who decides on verify lengths once there is a
        step-time curve; `thalweg.dspark` has one, the C++ core has its own.
        """
        sizes = Sizes.resolve(
            config,
            num_blocks=num_blocks,
            num_state_slots=num_state_slots,
            block_size=block_size,
            draft_length=draft_length,
            tail_length=tail_length,
            vocab_size=vocab_size,
            context_parallel_size=context_parallel_size,
        )
        flops = FlopsEstimator(flops_model) if flops_model is not None else None
        self._state = State(config, sizes, flops, verify_budget)
        self._next_id = 0
        self._order = StepOrder(self._state)
        self._unreleased: dict[int, list[Sequence]] = {}
        """Finished sequences by the step that listed them, until `release`."""

    def add(
        self,
        token_ids: NDArray[np.int32],
        *,
        max_tokens: int,
        eos_token_id: int,
        ignore_eos: bool = False,
        checkpoints: SequenceOf[int] = (),
        is_schedulable: bool = True,
        is_structured: bool = False,
    ) -> int:
        """Raises RuntimeError in a decode-only engine, whose sequences come through `add_loaded`."""
        if self._state.is_completion_engine:
            raise RuntimeError("add: a decode-only engine cannot prefill; add_loaded takes what others prefilled")
        sequence = new_sequence(
            self._next_id,
            token_ids,
            max_tokens=max_tokens,
            eos_token_id=eos_token_id,
            ignore_eos=ignore_eos,
            checkpoints=checkpoints,
            is_schedulable=is_schedulable,
            is_structured=is_structured,
        )
        self._state.waiting.append(sequence)
        return self._register(sequence)

    def add_loaded(
        self,
        token_ids: NDArray[np.int32],
        num_computed_tokens: int,
        *,
        max_tokens: int,
        eos_token_id: int,
        ignore_eos: bool = False,
        prompt_length: int | None = None,
        checkpoints: SequenceOf[int] = (),
        is_structured: bool = False,
    ) -> int | None:
        sequence = new_sequence(
            self._next_id,
            token_ids,
            max_tokens=max_tokens,
            eos_token_id=eos_token_id,
            ignore_eos=ignore_eos,
            checkpoints=checkpoints,
            is_schedulable=False,
            is_structured=is_structured,
            prompt_length=prompt_length,
        )
        return self._register(sequence) if load_sequence(self._state, sequence, num_computed_tokens) else None

    def fork(self, sequence_id: int, *, last_token_id: int | None = None) -> int | None:
        """Also a RuntimeError while the sequence is still being loaded."""
        parent = self._known("fork", sequence_id)
        if parent.is_finished:
            raise RequestError(f"cannot fork sequence {sequence_id}: it is finished")
        child = fork_sequence(self._state, parent, self._next_id, last_token_id)
        return self._register(child) if child is not None else None

    def _register(self, sequence: Sequence) -> int:
        self._next_id += 1
        self._state.sequences[sequence.sequence_id] = sequence
        return sequence.sequence_id

    def abort(self, sequence_ids: SequenceOf[int]) -> int:
        return abort(self._state, sequence_ids)

    def set_schedulable(self, sequence_id: int) -> None:
        """Does nothing for a sequence that is gone: it may have been aborted while its data was under way."""
        sequence = self._state.sequences.get(index(sequence_id))
        if sequence is not None:
            sequence.is_schedulable = True

    def begin_step(self, anyone_running: bool, anyone_half_prefilled: bool = False) -> Ballot:
        self._order.check_begin()
        vote = choose_round(self._state, anyone_running, anyone_half_prefilled)
        ballot = Ballot(vote, wants_prefill(self._state))
        self._order.open(ballot)
        return ballot

    def try_prefill(self) -> bool:
        """A prefill-only engine may call it whatever the ballot says."""
        self._order.check_try_prefill()
        self._state.prepared = plan_prefill(self._state) or None
        return self._state.prepared is not None

    def finish_step(self, kind: StepKind) -> StepPlan:
        self._order.check_finish(kind)
        commit = commit_prefill if kind == StepKind.PREFILL else commit_decode
        planned = commit(self._state, self._order.next_step)
        plan = build_plan(planned, self._state)
        self._order.close(planned)
        if planned.finished:
            self._unreleased[planned.step] = planned.finished
        return plan

    def correct(self, step: int, query_lengths: NDArray[np.int32] | None = None) -> StepCorrection:
        planned = self._order.correctable(index(step))
        draft_length = self._state.sizes.draft_length
        if query_lengths is not None:
            check_query_lengths(query_lengths, planned, draft_length)
        return correct_step(planned, query_lengths, draft_length)

    def process(self, result: StepResult) -> StepOutcome:
        planned = self._order.due(index(result.step))
        check_result(result, planned, self._state.sizes.draft_length)
        outcome = process_step(self._state, planned, result)
        self._state.in_flight.popleft()
        for sequence in [*planned.finished, *planned.dropped]:
            sequence.has_left = True
            self._state.forget(sequence)
        return outcome

    def release(self, step: int) -> None:
        """Does nothing the second time. Raises ValueError for a step that was not planned yet."""
        if not 0 <= index(step) < self._order.next_step:
            raise ValueError(f"cannot release step {step}; {self._order.next_step} steps were planned")
        for sequence in self._unreleased.pop(step, []):
            self._state.free(sequence)
            self._state.forget(sequence)
        self._state.memory.copies.unpin(step - 1)

    def hold(self, sequence_id: int) -> None:
        """Raises ValueError for a sequence that is unknown or already gone."""
        self._known("hold", sequence_id).is_held = True

    def release_one(self, sequence_id: int) -> None:
        """End a hold. The memory goes now if it was due, else when it would have gone without the hold.

        In a prefill-only engine a completed prompt leaves with this, and its memory goes now.
        """
        sequence = self._state.sequences.get(index(sequence_id))
        if sequence is not None:
            end_hold(self._state, sequence)

    def memory_of(self, sequence_id: int) -> tuple[NDArray[np.int32], int]:
        sequence = self._known("show", sequence_id)
        return np.array(sequence.blocks, np.int32), sequence.state_slot

    def _known(self, purpose: str, sequence_id: int) -> Sequence:
        sequence = self._state.sequences.get(index(sequence_id))
        if sequence is None:
            raise RequestError(f"cannot {purpose} sequence {sequence_id}: it is unknown or its memory was released")
        return sequence

    @property
    def blocks(self) -> BlockAllocator:
        return self._state.memory.blocks

    @property
    def state_slots(self) -> BlockAllocator:
        return self._state.memory.state_slots

    def set_step_time_curve(self, points: SequenceOf[tuple[int, float]]) -> None:
        """Raises ConfigError, which is a ValueError, when the scheduler was built without a verify budget."""
        if self._state.verify_budget is None:
            raise ConfigError("verify_budget is None; a step-time curve needs one")
        largest = max((size for size, _ in points), default=0)
        if points and largest < self._state.config.max_num_seqs:
            raise ConfigError(
                f"the largest size of the step-time curve is {largest}; it must be at least max_num_seqs, "
                f"{self._state.config.max_num_seqs}"
            )
        self._state.verify_budget.set_step_time_curve(points)
        self._state.has_curve = True

    def record_step_time(self, num_rows: int, graph_size: int, forward_ms: float, sampler_ms: float) -> None:
        """Without a verify budget nobody listens."""
        if self._state.verify_budget is not None:
            self._state.verify_budget.record_step_time(num_rows, graph_size, forward_ms, sampler_ms)

    @property
    def has_unfinished(self) -> bool:
        return self._state.has_unfinished

    @property
    def has_running(self) -> bool:
        return self._state.has_running

    @property
    def has_half_prefilled(self) -> bool:
        return self._state.has_half_prefilled

    def debug_state(self) -> dict[str, Any]:
        """See `thalweg.scheduler.reference.debug`."""
        return describe(self._state, self._order.next_step)
