"""Drives schedulers side by side through one workload and checks, after every step, what must always hold."""

from __future__ import annotations

import dataclasses
from collections import Counter
from collections.abc import Callable, Iterable, Sequence
from typing import Any

import numpy as np
from scheduler_testing.cores import CORE_NAMES, Core, load_core
from scheduler_testing.sampler import EOS, Script, sample
from scheduler_testing.workload import Arrival, Workload, make_workload

from thalweg.interfaces import StepKind, StepOutcome, StepPlan, VoteRound

MAX_IDLE_STEPS = 3
"""A finished sequence may occupy memory for one more step, and an empty step may deliver dropped requests."""


def run_seeds(seeds: Iterable[int], policy: str) -> None:
    """Run the workload of each seed on both cores; a failure says which one it was."""
    cores = [load_core(name) for name in CORE_NAMES]
    for seed in seeds:
        workload = make_workload(seed, policy)
        try:
            Lockstep(cores, workload).run()
        except Exception as error:
            error.add_note(f"seed {seed}, policy {policy}: {workload}")
            raise


class Lockstep:
    """The first scheduler's answers are checked against the rules; all others must give equal ones."""

    def __init__(self, cores: Sequence[Core], workload: Workload) -> None:
        self.workload = workload
        self.random = workload.random
        self.is_default = workload.config.policy == "default"
        self.schedulers = [core.Scheduler(workload.config, **workload.sizes) for core in cores]
        self.arrivals: dict[int, Arrival] = {}
        self.scripts: dict[int, Script] = {}
        self.tokens: dict[int, list[int]] = {}
        self.final_records: Counter[int] = Counter()
        self.pinned: list[int] = []
        self.held: set[int] = set()
        self.idle_steps = 0
        self.last_state: dict[str, Any] = {}

    def run(self) -> int:
        """Run until everything is drained; returns the number of steps."""
        pending = list(self.workload.arrivals)
        step = 0
        while pending or self.all(lambda scheduler: scheduler.has_unfinished):
            assert step < self.workload.step_bound, "not drained within the bound"
            while pending and pending[0].step <= step:
                self.add(pending.pop(0))
            self.step(step)
            step += 1
        self.drop_pins_and_holds(1.0)
        self.check_drained()
        return step

    def all(self, call: Callable[[Any], Any]) -> Any:
        """The common answer of all schedulers."""
        answers = [call(scheduler) for scheduler in self.schedulers]
        for answer in answers[1:]:
            assert_equal(answers[0], answer)
        return answers[0]

    def add(self, arrival: Arrival) -> None:
        prompt = [2 + index % 50 for index in range(arrival.prompt_length)]
        sequence_id = self.all(
            lambda scheduler: scheduler.add(
                np.array(prompt, np.int32),
                max_tokens=arrival.max_tokens,
                eos_token_id=EOS,
                ignore_eos=arrival.ignore_eos,
                checkpoints=arrival.checkpoints,
                is_schedulable=arrival.schedulable_at <= arrival.step,
                is_structured=arrival.is_structured,
            )
        )
        assert sequence_id not in self.arrivals
        self.arrivals[sequence_id] = arrival
        self.scripts[sequence_id] = arrival.script
        self.tokens[sequence_id] = prompt

    def step(self, index: int) -> None:
        for sequence_id, arrival in self.arrivals.items():
            if arrival.schedulable_at == index:
                self.all(lambda scheduler, sequence_id=sequence_id: scheduler.set_schedulable(sequence_id))
        self.maybe_abort()
        plan = self.plan()
        planned = self.all(lambda scheduler: scheduler.debug_state())
        self.check_plan(plan, planned)
        self.maybe_abort()
        self.maybe_pin(plan)
        self.maybe_hold(plan)
        result = sample(plan, self.scripts, self.workload.sizes["draft_length"])
        if self.random.random() < 0.5:
            self.all(lambda scheduler: scheduler.release(plan.step))
            outcome = self.all(lambda scheduler: scheduler.process(result))
        else:
            outcome = self.all(lambda scheduler: scheduler.process(result))
            self.all(lambda scheduler: scheduler.release(plan.step))
        self.check_outcome(plan, outcome)
        self.check_state()
        self.check_progress(plan, outcome)
        self.drop_pins_and_holds(0.3)

    def plan(self) -> StepPlan:
        running = self.all(lambda scheduler: scheduler.has_running)
        half_prefilled = self.all(lambda scheduler: scheduler.has_half_prefilled)
        ballot = self.all(lambda scheduler: scheduler.begin_step(running, half_prefilled))
        kind = StepKind.DECODE
        # Now and then the group says no, as other ranks may.
        is_won = ballot.round != VoteRound.NONE and ballot.wants and self.random.random() < 0.95
        if is_won and self.all(lambda scheduler: scheduler.try_prefill()):
            kind = StepKind.PREFILL
        self.maybe_abort()
        plan: StepPlan = self.all(lambda scheduler: scheduler.finish_step(kind))
        return plan

    def maybe_abort(self) -> None:
        if self.random.random() < self.workload.abort_rate and self.arrivals:
            ids = self.random.choices([*self.arrivals, 10**6], k=self.random.randint(1, 2))
            self.all(lambda scheduler: scheduler.abort(ids))

    def maybe_pin(self, plan: StepPlan) -> None:
        """A store that still reads some blocks of this step."""
        if len(plan.block_ids) and self.random.random() < self.workload.pin_rate:
            pins = self.random.sample(plan.block_ids.tolist(), 1)
            self.all(lambda scheduler: scheduler.blocks.pin(pins))
            self.pinned += pins

    def maybe_hold(self, plan: StepPlan) -> None:
        if len(plan.sequence_ids) and self.random.random() < self.workload.hold_rate:
            sequence_id = self.random.choice(plan.sequence_ids.tolist())
            self.all(lambda scheduler: scheduler.hold(sequence_id))
            self.held.add(sequence_id)

    def drop_pins_and_holds(self, chance: float) -> None:
        if self.pinned and self.random.random() < chance:
            pins, self.pinned = self.pinned, []
            self.all(lambda scheduler: scheduler.blocks.release(pins))
        if self.held and self.random.random() < chance:
            held, self.held = self.held, set()
            for sequence_id in sorted(held):
                self.all(lambda scheduler, sequence_id=sequence_id: scheduler.release_one(sequence_id))

    def check_plan(self, plan: StepPlan, planned: dict[str, Any]) -> None:
        sizes = self.workload.sizes
        assert plan.num_batched_tokens <= self.workload.sizes_budget
        assert plan.query_lengths.sum() <= plan.num_batched_tokens
        assert len(set(plan.sequence_ids.tolist())) == len(plan.sequence_ids)
        assert (plan.query_lengths > 0).all()
        block_counts = np.diff(plan.block_offsets)
        assert (block_counts * sizes["block_size"] >= plan.context_lengths).all()
        lengths = [len(self.tokens[sequence_id]) for sequence_id in plan.sequence_ids.tolist()]
        assert plan.committed_lengths.tolist() == lengths
        if plan.kind == StepKind.DECODE:
            assert len(plan.sequence_ids) <= self.workload.config.max_num_seqs
            slots_in_use = self.workload.config.max_num_seqs - len(planned["free_draft_slots"])
            assert slots_in_use == (len(planned["running"]) if sizes["draft_length"] else 0)
            # Synchronous: exactly the last committed token and the drafts are new.
            assert (plan.context_lengths == plan.committed_lengths + plan.query_lengths - 1).all()

    def check_outcome(self, plan: StepPlan, outcome: StepOutcome) -> None:
        for row, sequence_id in enumerate(plan.sequence_ids.tolist()):
            new = outcome.token_ids[outcome.token_offsets[row] : outcome.token_offsets[row + 1]].tolist()
            prompt_length = self.arrivals[sequence_id].prompt_length
            num_output = len(self.tokens[sequence_id]) - prompt_length
            script = self.scripts[sequence_id]
            assert not (new and self.final_records[sequence_id]), "a token after the final record"
            assert new == [script.token(num_output + index) for index in range(len(new))]
            self.tokens[sequence_id] += new
            assert outcome.num_output_tokens[row] == num_output + len(new)
            self.final_records[sequence_id] += int(outcome.finish_reasons[row] != 0)
        self.final_records.update(outcome.closed_ids.tolist())
        for sequence_id, num_output in zip(outcome.closed_ids, outcome.closed_num_output_tokens, strict=True):
            assert num_output == len(self.tokens[sequence_id]) - self.arrivals[sequence_id].prompt_length
        assert all(count <= 1 for count in self.final_records.values())

    def check_state(self) -> None:
        """No block or slot is lost, and none has two owners."""
        state = self.all(lambda scheduler: scheduler.debug_state())
        self.last_state = state
        sequences = state["sequences"].values()
        owned = [block for sequence in sequences for block in sequence["blocks"]]
        assert_disjoint(owned, state["free_blocks"])
        unowned = set(range(1, self.workload.sizes["num_blocks"])) - {*owned, *state["free_blocks"]}
        assert unowned <= set(self.pinned), f"blocks {unowned} are lost"
        slots = [sequence["state_slot"] for sequence in sequences if sequence["state_slot"] > 0]
        assert_disjoint(slots, state["free_state_slots"])
        assert len(slots) + len(state["free_state_slots"]) == self.workload.sizes["num_state_slots"] - 1
        drafts = [sequence["draft_slot"] for sequence in sequences if sequence["draft_slot"]]
        assert_disjoint(drafts, state["free_draft_slots"])
        assert len(drafts) + len(state["free_draft_slots"]) == self.workload.config.max_num_seqs
        assert not set(state["waiting"]) & set(state["running"])
        for sequence in sequences:
            assert sequence["schedule_count"] == sequence["process_count"]
            assert sequence["num_computed"] <= sequence["len"]

    def check_progress(self, plan: StepPlan, outcome: StepOutcome) -> None:
        is_blocked = (
            self.pinned
            or self.held
            or any(not sequence["is_schedulable"] for sequence in self.last_state["sequences"].values())
        )
        moved = len(plan.sequence_ids) or len(outcome.closed_ids) or len(plan.restarted_ids)
        has_work = self.all(lambda scheduler: scheduler.has_unfinished)
        self.idle_steps = 0 if moved or is_blocked or not has_work else self.idle_steps + 1
        if self.is_default:
            assert self.idle_steps <= MAX_IDLE_STEPS, "the scheduler stands still"

    def check_drained(self) -> None:
        assert set(self.final_records) == set(self.arrivals) or not self.is_default
        assert all(count == 1 for count in self.final_records.values())
        state = self.all(lambda scheduler: scheduler.debug_state())
        assert state["sequences"] == {}
        assert len(state["free_blocks"]) == self.workload.sizes["num_blocks"] - 1
        assert len(state["free_state_slots"]) == self.workload.sizes["num_state_slots"] - 1


def assert_disjoint(first: list[int], second: list[int]) -> None:
    both = first + second
    assert len(set(both)) == len(both), f"handed out twice: {sorted(Counter(both) - Counter(set(both)))}"


def assert_equal(first: Any, second: Any) -> None:
    """Equal values, dtypes and shapes; dataclasses field by field so that a failure names the field."""
    if not dataclasses.is_dataclass(first):
        assert first == second
        return
    assert type(first) is type(second)
    for field in dataclasses.fields(first):
        left, right = getattr(first, field.name), getattr(second, field.name)
        if isinstance(left, np.ndarray):
            assert left.dtype == right.dtype, field.name
            assert left.shape == right.shape, field.name
            equal_nan = left.dtype == np.float32
            assert np.array_equal(left, right, equal_nan=equal_nan), f"{field.name}: {left} {right}"
            assert right.flags.c_contiguous, field.name
        else:
            assert left == right, field.name
