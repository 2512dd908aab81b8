"""What befalls a rank between the calls of its engine: arrivals, aborts, forks, pins, holds and mistakes."""

from __future__ import annotations

from typing import Any

import numpy as np
import pytest
from scheduler_testing.ledger import Entry
from scheduler_testing.oracle import EOS
from scheduler_testing.rank import Rank
from scheduler_testing.workload import Arrival

from thalweg.interfaces import StepResult

UNKNOWN_ID = 10**6
MAX_FORKS = 6
"""Of one rank; each may fork again."""


class Events:
    """Brings a workload's requests to one rank and disturbs it as often as the workload says."""

    def __init__(self, rank: Rank, arrivals: list[Arrival]) -> None:
        self.rank = rank
        self.workload = rank.workload
        self.twin = rank.twin
        self.random = rank.random
        self.entries = rank.ledger.entries
        self.pending = list(arrivals)
        self.unschedulable: dict[int, tuple[int, int | None]] = {}
        """Waiting for data: the step at which it arrives, and how many tokens of the cache come with it."""
        self.index = 0
        rank.twin.between = self.abort_some

    @property
    def is_blocked(self) -> bool:
        """Something outside the scheduler keeps memory from it; it may have to stand still."""
        rank = self.rank
        return bool(
            self.unschedulable
            or rank.pinned
            or rank.held
            or any(rank.finished_in.values())
            or any(entry.is_waiting_for_hand_over for entry in self.entries.values())
        )

    def before_plan(self, index: int) -> None:
        self.index = index
        if curve := self.workload.curves.get(index):
            self.rank.set_curve(curve)
        while self.pending and self.pending[0].step <= index:
            if not self._arrive(self.pending[0]):
                break
            self.pending.pop(0)
        for sequence_id, (due, num_computed) in list(self.unschedulable.items()):
            if due <= index:
                self._make_schedulable(sequence_id, num_computed)
        self.disturb()

    def disturb(self) -> None:
        """One of the points of a step at which anything may come."""
        self.abort_some()
        self.fork_some()
        self.misuse()

    def after_plan(self) -> None:
        self.disturb()
        self.pin_some()
        self.hold_some()

    def end_of_step(self) -> None:
        rank = self.rank
        for step in list(rank.unreleased):
            if self.random.random() >= self.workload.chances.late_release:
                rank.release(step)
        self.hand_over_some()
        self.let_go(0.3)

    def _arrive(self, arrival: Arrival) -> bool:
        """False: no room for its cache entries now; it comes again."""
        stream = self.workload.stream(arrival)
        num_output, num_computed = arrival.loaded or (0, 0)
        tokens = stream.tokens(0, arrival.prompt_length + num_output)
        options: dict[str, Any] = {
            "max_tokens": arrival.max_tokens,
            "eos_token_id": EOS,
            "ignore_eos": arrival.ignore_eos,
            "checkpoints": arrival.checkpoints,
            "is_structured": arrival.is_structured,
        }
        if arrival.loaded is None:
            sequence_id = self.twin.call("add", np.array(tokens, np.int32), is_schedulable=not arrival.delay, **options)
        else:
            load = (np.array(tokens, np.int32), num_computed)
            options["prompt_length"] = arrival.prompt_length
            if self._is_refused(len(tokens)):
                with pytest.raises(ValueError):  # noqa: PT011
                    self.twin.call("add_loaded", *load, **options)
                return True
            before = self.twin.state()
            sequence_id = self.twin.call("add_loaded", *load, **options)
            if sequence_id is None:
                assert self.twin.state() == before, "an allocation that failed left something behind"
                return False
        self._enter(sequence_id, arrival, tokens)
        return True

    def _is_refused(self, length: int) -> bool:
        sizes = self.workload.sizes
        return length > self.workload.longest_prompt or -(-length // sizes["block_size"]) >= sizes["num_blocks"]

    def _enter(self, sequence_id: int, arrival: Arrival, tokens: list[int]) -> None:
        assert sequence_id not in self.entries
        stream = self.workload.stream(arrival)
        self.rank.streams[sequence_id] = stream
        self.rank.ledger.checkpoints[sequence_id] = arrival.checkpoints
        self.entries[sequence_id] = Entry(
            key=arrival.key,
            stream=stream,
            tokens=tokens,
            prompt_length=arrival.prompt_length,
            first_length=len(tokens),
            max_tokens=arrival.max_tokens,
            ignore_eos=arrival.ignore_eos,
            is_structured=arrival.is_structured,
            fails_at=arrival.fails_at,
        )
        if arrival.loaded is not None or arrival.delay:
            num_computed = arrival.loaded[1] if arrival.loaded is not None else None
            self.unschedulable[sequence_id] = (self.index + arrival.delay, num_computed)
        if arrival.loaded is not None and self.random.random() < 0.5:
            self._hold(sequence_id)

    def _make_schedulable(self, sequence_id: int, num_computed: int | None) -> None:
        del self.unschedulable[sequence_id]
        entry = self.entries[sequence_id]
        if num_computed is not None and entry.final is None and not entry.is_aborted:
            blocks, slot = self.twin.call("memory_of", sequence_id)
            self.rank.device.load(sequence_id, blocks.tolist(), slot, num_computed)
        self.twin.call("set_schedulable", sequence_id)

    def abort_some(self) -> None:
        if self.random.random() >= self.workload.chances.abort or not self.entries:
            return
        unfinished = self.rank.ledger.unfinished()
        ids = self.random.choices([*self.entries, *unfinished, *unfinished, UNKNOWN_ID], k=self.random.randint(1, 2))
        ids += self.random.sample(ids, k=self.random.randint(0, 1))
        before = self.twin.state()["sequences"]
        hit = {each for each in ids if each in before and before[each]["status"] < 3}
        assert self.twin.call("abort", ids) == len(hit)
        after = self.twin.state()
        for sequence_id in hit:
            self.entries[sequence_id].is_aborted = True
            is_queued = sequence_id in after["waiting"] or sequence_id in after["prompted"]
            if is_queued and sequence_id not in self.rank.held:
                assert after["sequences"][sequence_id]["blocks"] == [], "an aborted waiting sequence keeps its memory"

    def fork_some(self) -> None:
        has_enough = sum(entry.is_forked for entry in self.entries.values()) >= MAX_FORKS
        if self.random.random() >= self.workload.chances.fork or not self.entries or has_enough:
            return
        before = self.twin.state()
        unfinished = self.rank.ledger.unfinished()
        parent_id = self.random.choice([*self.entries, UNKNOWN_ID, *unfinished, *before["running"] * 4])
        parent = before["sequences"].get(parent_id)
        is_replaced = self.random.random() < 0.3
        options = {"last_token_id": self.random.randrange(2, 900)} if is_replaced else {}
        if error := self._fork_error(before, parent_id, is_replaced):
            self._expect((error,), "fork", parent_id, **options)
            return
        assert parent is not None
        child_id = self.twin.call("fork", parent_id, **options)
        if child_id is None:
            assert self.twin.state() == before, "a fork that failed left something behind"
            return
        self._enter_fork(child_id, parent_id, parent, options.get("last_token_id"))
        self.rank.check_state()

    def _fork_error(self, state: dict[str, Any], parent_id: int, is_replaced: bool) -> type[Exception] | None:
        """Why this sequence cannot be forked now."""
        parent = state["sequences"].get(parent_id)
        if parent is None or parent["status"] >= 3:
            return ValueError
        if len(self.rank.unprocessed) > 1 or parent_id in self.rank.prefill_rows:
            return RuntimeError
        if parent["blocks"] and not parent["is_schedulable"]:
            return RuntimeError
        is_decoding = parent_id in state["running"] or parent_id in state["prompted"]
        if is_decoding and self.workload.is_prompt_engine:
            return ValueError
        return ValueError if is_replaced and not (is_decoding and parent["len"] > parent["prompt_len"]) else None

    def _enter_fork(self, child_id: int, parent_id: int, parent: dict[str, Any], last_token_id: int | None) -> None:
        rank, origin = self.rank, self.entries[parent_id]
        stream = origin.stream.fork(parent["len"], last_token_id)
        rank.streams[child_id] = stream
        rank.ledger.checkpoints[child_id] = rank.ledger.checkpoints[parent_id]
        self.entries[child_id] = Entry(
            key=f"{origin.key}/{child_id}",
            stream=stream,
            tokens=stream.tokens(0, parent["len"]),
            prompt_length=origin.prompt_length,
            first_length=parent["len"],
            max_tokens=origin.max_tokens,
            ignore_eos=origin.ignore_eos,
            is_structured=origin.is_structured,
            fails_at=origin.fails_at,
            is_forked=True,
        )
        if parent["blocks"]:
            part = parent["num_computed"] // self.workload.sizes["block_size"]
            block = parent["blocks"][part] if parent["num_computed"] % self.workload.sizes["block_size"] else 0
            rank.copy_sources.append((None, block, parent["state_slot"]))
        if not parent["is_schedulable"]:
            due, _ = self.unschedulable[parent_id]
            self.unschedulable[child_id] = (due, None)

    def pin_some(self) -> None:
        """A store that still reads some blocks of this step."""
        plan = self.rank.plan
        assert plan is not None
        if self.random.random() >= self.workload.chances.pin:
            return
        owned = [block for sequence in self.twin.state()["sequences"].values() for block in sequence["blocks"]]
        if owned:
            pins = [self.random.choice(owned)]
            self.twin.pool("blocks", "pin", pins)
            self.rank.pinned += pins

    def hold_some(self) -> None:
        known = list(self.twin.state()["sequences"])
        if known and self.random.random() < self.workload.chances.hold:
            self._hold(self.random.choice(known))

    def _hold(self, sequence_id: int) -> None:
        self.twin.call("hold", sequence_id)
        self.rank.held.add(sequence_id)

    def hand_over_some(self) -> None:
        """Prefill-only engine: completed prompts move on after a while; aborted ones must not."""
        for sequence_id, entry in self.entries.items():
            is_ready = entry.is_waiting_for_hand_over and not entry.is_aborted
            if is_ready and sequence_id not in self.rank.held and self.random.random() < 0.5:
                self._release_one(sequence_id)

    def let_go(self, chance: float) -> None:
        rank = self.rank
        if rank.pinned and self.random.random() < chance:
            pins, rank.pinned = rank.pinned, []
            self.twin.pool("blocks", "release", pins)
        if self.random.random() < chance:
            for sequence_id in sorted(rank.held):
                entry = self.entries[sequence_id]
                if not (entry.is_aborted and entry.final is None and self.workload.is_prompt_engine):
                    self._release_one(sequence_id)

    def _release_one(self, sequence_id: int) -> None:
        entry = self.entries[sequence_id]
        self.twin.call("release_one", sequence_id)
        self.rank.held.discard(sequence_id)
        if entry.is_waiting_for_hand_over:
            entry.is_handed_over = True
            self.rank.has_moved = True
            assert sequence_id not in self.twin.state()["sequences"], "a prompt that was handed over is still here"

    def misuse(self) -> None:
        """A call that is refused changes nothing."""
        if self.random.random() >= self.workload.chances.misuse:
            return
        num_due, step = len(self.rank.unprocessed), self.twin.state()["step"]
        empty = np.zeros((0, 0), np.int32)
        result = StepResult(step, np.zeros(0, np.int32), empty, empty, empty.astype(np.float32), None)
        mistakes: list[tuple[type[Exception], str, tuple[Any, ...]]] = [
            (ValueError, "process", (result,)),
            (ValueError, "release", (step,)),
            (ValueError, "hold", (UNKNOWN_ID,)),
            (ValueError, "memory_of", (UNKNOWN_ID,)),
            (ValueError, "fork", (UNKNOWN_ID,)) if num_due < 2 else (RuntimeError, "begin_step", (True,)),
            (ValueError, "record_step_time", (0, 8, 1.0, 1.0)),
            (ValueError, "set_step_time_curve", ([],)),
            (ValueError, "set_step_time_curve", ([(4, 1.0), (4, 2.0)],)),
            (RuntimeError, "correct", (step,)),
            (RuntimeError, "try_prefill", ()),
            (RuntimeError, "finish_step", (1,)),
        ]
        error, name, arguments = self.random.choice(mistakes)
        self._expect((error,), name, *arguments)
        self.twin.call("release_one", UNKNOWN_ID)
        self.twin.call("set_schedulable", UNKNOWN_ID)
        assert self.twin.call("abort", [UNKNOWN_ID, -1]) == 0

    def _expect(self, errors: tuple[type[Exception], ...], name: str, *args: Any, **options: Any) -> None:
        before = self.twin.state()
        with pytest.raises(errors):
            self.twin.call(name, *args, **options)
        assert self.twin.state() == before, f"{name} was refused and changed something"
