"""One data-parallel rank in a random run: its schedulers in lock step, its device, and the loop of an engine."""

from __future__ import annotations

import random
from collections.abc import Sequence
from typing import Any

import numpy as np
from scheduler_testing.cores import Core
from scheduler_testing.device import Device, Launched
from scheduler_testing.invariants import (
    check_copy_sources,
    check_counters,
    check_draft_slots,
    check_drained,
    check_memory,
    check_order,
    check_queues,
)
from scheduler_testing.ledger import Ledger
from scheduler_testing.oracle import Stream
from scheduler_testing.plan_checks import check_correction, check_plan, check_preemption, wants_prefill
from scheduler_testing.twin import Twin, new_scheduler
from scheduler_testing.workload import Curve, Workload

from thalweg.interfaces import StepKind, StepOutcome, StepPlan
from thalweg.scheduler.vote import GroupFlags, plan_step, share_flags


class Rank:
    """Runs steps as an engine would, and checks everything after each call."""

    def __init__(self, workload: Workload, index: int, cores: Sequence[Core], communicator: Any) -> None:
        self.workload = workload
        self.index = index
        self.communicator = communicator
        self.random = random.Random(f"{workload.seed}/{index}")
        self.twin = Twin([new_scheduler(core, workload) for core in cores])
        self.streams: dict[int, Stream] = {}
        self.ledger = Ledger(workload)
        self.device = Device(workload.sizes, workload.config.max_num_seqs, self.streams)
        self.in_flight: Launched | None = None
        self.unprocessed: list[set[int]] = []
        """Sequences of each step whose result is due, oldest first; restarted ones are taken out."""
        self.prefill_rows: set[int] = set()
        """Sequences of the prefill step whose result is due."""
        self.unreleased: list[int] = []
        self.finished_in: dict[int, list[int]] = {}
        """Sequences that left with each step that is not released yet."""
        self.copy_sources: list[tuple[int | None, int, int]] = []
        """(step that copies or None, block or 0, state slot) that forks copy from."""
        self.copying: dict[int, StepPlan] = {}
        """Plans that list copies, until the step after them is released."""
        self.pinned: list[int] = []
        self.held: set[int] = set()
        self.curve: Curve | None = None
        """Step times by which verify lengths vary; None = every row verifies all its drafts."""
        self.plan: StepPlan | None = None
        self.flags = GroupFlags(unfinished=True, running=False, half_prefilled=False)
        self.has_moved = False
        self.steps_wanting = 0
        """Steps since it was last asked for the prefill that it wants."""

    def set_curve(self, curve: Curve) -> None:
        self.twin.call("set_step_time_curve", curve)
        self.curve = curve

    @property
    def is_busy(self) -> bool:
        state = self.twin.state()
        return bool(state["waiting"] or state["running"] or state["prompted"])

    def plan_next(self) -> StepPlan:
        """One planning, votes included; runs beside the other ranks of the group."""
        before = self.twin.state()
        self.flags = share_flags(self.twin, self.communicator)
        self.plan = plan_step(self.twin, self.communicator, self.flags)
        if self.workload.is_default:
            assert self.twin.ballot is not None
            assert self.twin.ballot.wants == wants_prefill(before, self.workload)
        check_preemption(self.plan, before, self.workload)
        return self.plan

    def take_plan(self) -> None:
        """Look at the plan and launch it."""
        plan = self.plan
        assert plan is not None
        state = self.twin.state()
        check_plan(plan, state, self.ledger, self.in_flight, self.curve)
        for sequence_id in plan.restarted_ids.tolist():
            self.device.forget(sequence_id)
            for rows in self.unprocessed:
                rows.discard(sequence_id)
        self.unprocessed.append(set(plan.sequence_ids.tolist()))
        if plan.kind == StepKind.PREFILL:
            self.prefill_rows = set(plan.sequence_ids.tolist())
        else:
            check_draft_slots(state, self.workload)
        self.copy_sources = [
            (plan.step if step is None else step, block, slot) for step, block, slot in self.copy_sources
        ]
        if len(plan.state_copies):
            self.copying[plan.step] = plan
        self.unreleased.append(plan.step)
        self.finished_in[plan.step] = plan.finished_ids.tolist()
        self.has_moved = bool(len(plan.sequence_ids) or len(plan.restarted_ids))
        self.check_state(state)
        self.launched = self.device.launch(plan, self.in_flight, self.curve is not None)

    def finish(self) -> None:
        """Everything after the launch, but for the events that `events.py` puts in between."""
        launched = self.launched
        self.process_in_flight()
        correction = None
        if launched.is_decode and self.workload.is_async:
            correction = self.correct(launched)
        self.sample(launched, correction)
        # A step without rows may stay in flight or be finished in place; an engine that has nothing left does that.
        is_empty = not len(launched.plan.sequence_ids) and self.random.random() < 0.5
        if launched.is_decode and self.workload.is_async and not is_empty:
            self.in_flight = launched
        else:
            self.process(launched)

    def process_in_flight(self) -> None:
        if self.in_flight is not None:
            in_flight, self.in_flight = self.in_flight, None
            self.process(in_flight)

    def correct(self, launched: Launched) -> Any:
        lengths = launched.query_lengths if self.curve is not None else None
        correction = self.twin.call("correct", launched.plan.step, lengths)
        check_correction(launched, correction, self.ledger)
        return correction

    def sample(self, launched: Launched, correction: Any) -> None:
        num_rows = len(launched.plan.sequence_ids)
        confidences = None
        if self.random.random() >= self.workload.chances.no_confidences:
            shape = (num_rows, self.workload.sizes["draft_length"])
            values = [self.random.choice([0.0, 0.5, self.random.random(), 1.0]) for _ in range(shape[0] * shape[1])]
            confidences = np.array(values, np.float32).reshape(shape)
        self.device.sample(launched, correction, confidences, self._row_status(launched))

    def _row_status(self, launched: Launched) -> Any:
        """The grammars' verdicts; None when no row has one."""
        entries = [self.ledger.entries[each] for each in launched.plan.sequence_ids.tolist()]
        if not any(entry.is_structured for entry in entries):
            return None
        return np.array([-1 if entry.has_failed else int(entry.is_structured) for entry in entries], np.int8)

    def process(self, launched: Launched) -> StepOutcome:
        assert launched.result is not None
        outcome: StepOutcome = self.twin.call("process", launched.result)
        self.unprocessed.pop(0)
        if not launched.is_decode:
            self.prefill_rows = set()
        self.ledger.record(launched, outcome)
        self.has_moved = self.has_moved or bool(len(outcome.closed_ids) or len(outcome.completed_ids))
        if self.curve is not None and launched.is_decode and len(launched.plan.sequence_ids):
            self._record_step_time(launched, self.curve)
        state = self.twin.state()
        self.check_state(state)
        if self.workload.is_default:
            check_order(state, launched.plan)
        return outcome

    def _record_step_time(self, launched: Launched, curve: Curve) -> None:
        num_tokens = launched.plan.num_batched_tokens
        # A step planned by an earlier curve may be larger than any graph of this one.
        graph_size, baseline_ms = next((point for point in curve if point[0] >= num_tokens), curve[-1])
        forward_ms, sampler_ms = baseline_ms * self.random.uniform(0.9, 1.3), self.random.uniform(0.0, 2.0)
        self.twin.call("record_step_time", len(launched.plan.sequence_ids), graph_size, forward_ms, sampler_ms)

    def release(self, step: int) -> None:
        """Allow the scheduler to reuse what ended with this step."""
        before = self.twin.state()["sequences"]
        self.twin.call("release", step)
        for sequence_id in self.finished_in.pop(step):
            left = self.twin.state()["sequences"].get(sequence_id, {"blocks": []})["blocks"]
            assert left == (before[sequence_id]["blocks"] if sequence_id in self.held else [])
        self.unreleased.remove(step)
        self.copying.pop(step - 1, None)
        self.copy_sources = [source for source in self.copy_sources if source[0] is None or source[0] != step - 1]
        self.check_state()

    def flush(self) -> None:
        """Take the last result, and let go of everything that was kept back."""
        self.process_in_flight()
        for step in list(self.unreleased):
            self.release(step)

    def check_state(self, state: dict[str, Any] | None = None) -> None:
        state = self.twin.state() if state is None else state
        blocks = [*self.pinned, *(block for _, block, _ in self.copy_sources)]
        check_memory(state, self.workload, blocks, (slot for _, _, slot in self.copy_sources))
        check_copy_sources(state, self.copying.values())
        check_queues(state, self.workload, self.prefill_rows)
        check_counters(state, self.workload, self.unprocessed)

    def check_drained(self) -> None:
        assert not self.twin.get("has_unfinished")
        assert not self.twin.get("has_running")
        check_drained(self.twin.state(), self.workload)
        if self.workload.is_default:
            self.ledger.check_ends()
