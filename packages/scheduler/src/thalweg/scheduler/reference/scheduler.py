"""The scheduler's public face: queue requests, plan steps, take results, give memory back."""

from __future__ import annotations

from collections.abc import Sequence as SequenceOf
from typing import Any

import numpy as np
from numpy.typing import NDArray

from thalweg.interfaces import (
    Ballot,
    BlockAllocator,
    SequenceStatus,
    StepKind,
    StepOutcome,
    StepPlan,
    StepResult,
    VoteRound,
)
from thalweg.scheduler.config import SchedulerConfig, Sizes
from thalweg.scheduler.reference.decode import plan_decode
from thalweg.scheduler.reference.plan import PlannedStep, build_plan, open_row
from thalweg.scheduler.reference.post_process import check_result, process_step
from thalweg.scheduler.reference.prefill import PrefillBatch, plan_prefill
from thalweg.scheduler.reference.requests import new_sequence
from thalweg.scheduler.reference.sequence import Sequence
from thalweg.scheduler.reference.state import State
from thalweg.scheduler.reference.step_vote import choose_round, wants_prefill


class Scheduler:
    """Continuous batching, planned synchronously: every plan gets its result before the next step begins.

    Satisfies `thalweg.interfaces.Scheduler`. A call out of order raises RuntimeError, a bad argument ValueError; both
    leave the scheduler as it was.

        begin_step -> (try_prefill, when the vote was won and this rank wants one) -> finish_step -> process

    `release(step)` may come any time after `finish_step`; `add` and `abort` may come anywhere. What the contract
    leaves open is settled as follows, for this core and its C++ twin alike.

    - `has_unfinished`: a sequence waits or runs (finished ones that the next step removes included), or a plan waits
      for its result. `has_running` and `has_half_prefilled` count unfinished sequences only.
    - An aborted waiting sequence stays in its queue, owning nothing, until the next plan lists it as dropped; it does
      not count as a reason to prefill.
    - Dropped sequences are listed in this order: aborted ones (planning order of the queue), then refused or
      preempted ones as planning met them. Token-less final records: finished ones first, then dropped ones.
    - A row that fails its grammar has a finish reason and no token. `closed_num_output_tokens` is the output length.
    - Prefill rows report one verified and one accepted token: the sampled one.
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
    ) -> None:
        """Both pool sizes include the null id 0. Raises ConfigError when sizes and config contradict each other."""
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
        self._state = State(config, sizes)
        self._sequences: dict[int, Sequence] = {}
        self._next_id = 0
        self._next_step = 0
        self._ballot: Ballot | None = None
        """Open between begin_step and finish_step."""
        self._prefill: PrefillBatch | None = None
        """Prepared by try_prefill, until finish_step."""
        self._planned: PlannedStep | None = None
        """Between finish_step and process."""
        self._unreleased: dict[int, list[Sequence]] = {}
        """Finished sequences by the step that listed them, until `release`."""
        self._kept: set[int] = set()
        """Held when `release` came by."""

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
        self._next_id += 1
        self._sequences[sequence.sequence_id] = sequence
        self._state.waiting.append(sequence)
        return sequence.sequence_id

    def abort(self, sequence_ids: SequenceOf[int]) -> int:
        """A running sequence leaves with the next decode step; a waiting one gives its memory back now."""
        wanted = set(sequence_ids)
        found = [sequence for sequence in self._abortable() if sequence.sequence_id in wanted]
        for sequence in found:
            sequence.status = SequenceStatus.FINISHED_ABORTED
        if self._state.is_default:
            for sequence in self._state.waiting:
                if sequence.is_finished:
                    self._state.memory.release(sequence)
        self._state.num_aborted += len(found)
        return len(found)

    def _abortable(self) -> list[Sequence]:
        """Unfinished sequences. Those of a prefill step stand in no queue until its result is processed."""
        everybody = [*self._state.running, *self._state.waiting]
        if self._state.is_default:
            if self._prefill is not None:
                everybody += [sequence for sequence, _ in self._prefill.rows]
            if self._planned is not None and self._planned.kind is StepKind.PREFILL:
                everybody += [row.sequence for row in self._planned.rows]
        return [sequence for sequence in everybody if not sequence.is_finished]

    def set_schedulable(self, sequence_id: int) -> None:
        """Does nothing for a sequence that is gone: it may have been aborted while its data was under way."""
        sequence = self._sequences.get(sequence_id)
        if sequence is not None:
            sequence.is_schedulable = True

    def begin_step(self, anyone_running: bool, anyone_half_prefilled: bool = False) -> Ballot:
        if self._planned is not None:
            raise RuntimeError(f"begin_step: step {self._planned.step} has to be processed first")
        if self._ballot is not None:
            raise RuntimeError("begin_step: the step is open already; finish_step closes it")
        vote = choose_round(self._state, anyone_running, anyone_half_prefilled)
        self._ballot = Ballot(vote, wants_prefill(self._state))
        return self._ballot

    def try_prefill(self) -> bool:
        if self._ballot is None:
            raise RuntimeError("try_prefill: no step is open; begin_step opens it")
        if self._ballot.round is VoteRound.NONE or not self._ballot.wants:
            raise RuntimeError("try_prefill: this step holds no vote, or this rank did not want a prefill")
        if self._prefill is not None:
            raise RuntimeError("try_prefill: this step has a prefill already")
        batch = plan_prefill(self._state)
        if not batch:
            return False
        self._prefill = batch
        return True

    def finish_step(self, kind: StepKind) -> StepPlan:
        if kind not in (StepKind.PREFILL, StepKind.DECODE):
            raise ValueError(f"kind is {kind!r}; it must be a StepKind")
        if self._ballot is None:
            raise RuntimeError("finish_step: no step is open; begin_step opens it")
        if kind == StepKind.PREFILL:
            planned = self._finish_prefill(self._prefill or PrefillBatch())
        elif self._prefill is None:
            planned = self._finish_decode()
        else:
            raise RuntimeError("finish_step: a prefill is prepared, the step cannot become a decode")
        self._ballot = self._prefill = None
        self._planned = planned
        self._next_step += 1
        if planned.finished:
            self._unreleased[planned.step] = planned.finished
        return build_plan(planned, self._state)

    def _finish_prefill(self, batch: PrefillBatch) -> PlannedStep:
        self._state.decode_step = 0
        rows = [open_row(sequence, chunk) for sequence, chunk in batch.rows]
        return PlannedStep(self._next_step, StepKind.PREFILL, batch.num_batched_tokens, rows, [], batch.dropped, [])

    def _finish_decode(self) -> PlannedStep:
        batch = plan_decode(self._state)
        self._state.decode_step += 1
        rows = [open_row(sequence, 1 + sequence.num_drafts) for sequence in batch.rows]
        num_tokens = sum(row.query_length for row in rows)
        return PlannedStep(
            self._next_step, StepKind.DECODE, num_tokens, rows, batch.finished, batch.dropped, batch.restarted
        )

    def process(self, result: StepResult) -> StepOutcome:
        planned = self._planned
        if planned is None or result.step != planned.step:
            expected = "no step waits for a result" if planned is None else f"step {planned.step} is due"
            raise ValueError(f"the result is for step {result.step}; {expected}")
        check_result(result, planned, self._state.sizes.draft_length)
        outcome = process_step(self._state, planned, result)
        self._planned = None
        for sequence in [*planned.finished, *planned.dropped]:
            self._forget(sequence)
        return outcome

    def release(self, step: int) -> None:
        """Does nothing the second time. Raises ValueError for a step that was not planned yet."""
        if not 0 <= step < self._next_step:
            raise ValueError(f"cannot release step {step}; {self._next_step} steps were planned")
        for sequence in self._unreleased.pop(step, []):
            if sequence.is_held:
                self._kept.add(sequence.sequence_id)
            else:
                self._state.memory.release(sequence)
                self._forget(sequence)

    def hold(self, sequence_id: int) -> None:
        """Raises ValueError for a sequence that is unknown or already gone."""
        if sequence_id not in self._sequences:
            raise ValueError(f"cannot hold sequence {sequence_id}: it is unknown or its memory was released")
        self._sequences[sequence_id].is_held = True

    def release_one(self, sequence_id: int) -> None:
        """End a hold. The memory goes now if `release` passed it over, else when `release` gets to it."""
        sequence = self._sequences.get(sequence_id)
        if sequence is None:
            return
        sequence.is_held = False
        if sequence_id in self._kept:
            self._kept.remove(sequence_id)
            self._state.memory.release(sequence)
            self._forget(sequence)

    def _forget(self, sequence: Sequence) -> None:
        """Drop the record of a sequence that left the queues, once its step is processed and it owns nothing."""
        if self._planned is not None and sequence in self._planned.finished:
            return
        if not sequence.blocks:
            self._sequences.pop(sequence.sequence_id, None)

    @property
    def blocks(self) -> BlockAllocator:
        return self._state.memory.blocks

    @property
    def state_slots(self) -> BlockAllocator:
        return self._state.memory.state_slots

    @property
    def has_unfinished(self) -> bool:
        return bool(self._state.waiting or self._state.running) or self._planned is not None

    @property
    def has_running(self) -> bool:
        return self._state.has_running

    @property
    def has_half_prefilled(self) -> bool:
        return self._state.has_half_prefilled

    def debug_state(self) -> dict[str, Any]:
        """Everything that decides what happens next, in plain values; both cores return equal dictionaries.

        step                number of the next plan
        decode_step         decode steps since the last prefill
        waiting, running    sequence ids; waiting in planning order
        free_blocks, free_state_slots, free_draft_slots    ids in the order in which they will be handed out
        num_preempted, num_aborted    running totals
        sequences           id -> the fields below, for every sequence that stands in a queue or in a step whose
                            result is due, or still owns memory

        status, len, prompt_len, num_computed, blocks, state_slot (-1 = none), draft_slot (0 = none),
        has_draft_info, num_drafts, schedule_count, process_count, structured_status, is_schedulable
        """
        state = self._state
        return {
            "step": self._next_step,
            "decode_step": state.decode_step,
            "waiting": [sequence.sequence_id for sequence in state.waiting],
            "running": [sequence.sequence_id for sequence in state.running],
            "free_blocks": state.memory.blocks.free_ids(),
            "free_state_slots": state.memory.state_slots.free_ids(),
            "free_draft_slots": state.memory.draft_slots.free_ids(),
            "num_preempted": state.num_preempted,
            "num_aborted": state.num_aborted,
            "sequences": {sequence_id: _describe(sequence) for sequence_id, sequence in self._sequences.items()},
        }


def _describe(sequence: Sequence) -> dict[str, Any]:
    return {
        "status": int(sequence.status),
        "len": sequence.length,
        "prompt_len": sequence.prompt_length,
        "num_computed": sequence.num_computed,
        "blocks": list(sequence.blocks),
        "state_slot": sequence.state_slot,
        "draft_slot": sequence.draft_slot,
        "has_draft_info": sequence.has_draft_info,
        "num_drafts": sequence.num_drafts,
        "schedule_count": sequence.schedule_count,
        "process_count": sequence.process_count,
        "structured_status": sequence.structured_status,
        "is_schedulable": sequence.is_schedulable,
    }
