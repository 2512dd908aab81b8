"""Drives schedulers side by side through random workloads, on one rank or a group, and checks them at every step.

To repeat a failure: `python -m scheduler_testing.lockstep SEED [POLICY]` in the folder `tests`; -v prints every plan.
"""

from __future__ import annotations

import argparse
import random
from collections.abc import Iterable, Sequence
from typing import Any

from scheduler_testing.communicator import Group, MadeUpPeers
from scheduler_testing.cores import CORE_NAMES, Core, load_core
from scheduler_testing.events import Events
from scheduler_testing.rank import Rank
from scheduler_testing.workload import Workload, make_workload

from thalweg.interfaces import StepKind, VoteRound

MAX_IDLE_STEPS = 5
"""A finished sequence may occupy memory for one more step, and empty steps may deliver dropped requests."""


def run_seeds(seeds: Iterable[int], policy: str = "default", core_names: Sequence[str] = CORE_NAMES) -> None:
    """Run the workload of each seed on all cores; a failure says how to repeat it."""
    cores = [load_core(name) for name in core_names]
    for seed in seeds:
        workload = make_workload(seed, policy)
        try:
            Lockstep(cores, workload).run()
        except Exception as error:
            error.add_note(
                f"repeat: cd packages/scheduler/tests && python -m scheduler_testing.lockstep {seed} {policy}"
            )
            raise


def run_both_ways(seeds: Iterable[int], core_names: Sequence[str] = CORE_NAMES) -> int:
    """Run the workload of each seed asynchronously and synchronously; requests that nothing cut off come out equal.

    Returns how many requests could be compared.
    """
    cores = [load_core(name) for name in core_names]
    num_compared = 0
    for seed in seeds:
        outputs = []
        for is_async in (True, False):
            lockstep = Lockstep(cores, make_workload(seed, async_scheduling=is_async))
            lockstep.run()
            outputs.append(lockstep.whole_outputs())
        common = outputs[0].keys() & outputs[1].keys()
        assert all(outputs[0][key] == outputs[1][key] for key in common), f"seed {seed}: {outputs}"
        num_compared += len(common)
    return num_compared


class Lockstep:
    """All ranks of one group, each with its schedulers, its device and its requests."""

    def __init__(self, cores: Sequence[Core], workload: Workload, is_verbose: bool = False) -> None:
        self.workload = workload
        self.is_verbose = is_verbose
        self.group = Group(workload.num_ranks)
        members: list[Any] = [self.group.member(index) for index in range(workload.num_ranks)]
        self.has_peers = workload.chances.odd_peers > 0
        if self.has_peers:
            members = [MadeUpPeers(random.Random(workload.seed), workload.chances.odd_peers)]
        self.ranks = [Rank(workload, index, cores, member) for index, member in enumerate(members)]
        self.events = [
            Events(rank, [arrival for arrival in workload.arrivals if arrival.rank == rank.index])
            for rank in self.ranks
        ]
        self.idle_steps = 0

    def run(self) -> int:
        """Run until everything is drained; returns the number of steps."""
        index = 0
        try:
            while self.is_going():
                assert index < self.workload.step_bound, "not drained within the bound"
                self.step(index)
                index += 1
        finally:
            self.group.close()
        for rank in self.ranks:
            rank.check_drained()
        return index

    def is_going(self) -> bool:
        """Whether some rank still has work; the last result may reveal some, and so may what was kept back."""
        if any(rank.is_busy for rank in self.ranks) or any(events.pending for events in self.events):
            return True
        for rank, events in zip(self.ranks, self.events, strict=True):
            rank.flush()
            events.let_go(1.0)
        return any(rank.twin.has_unfinished for rank in self.ranks)

    def step(self, index: int) -> None:
        for events in self.events:
            events.before_plan(index)
        decode_steps = [rank.twin.state()["decode_step"] for rank in self.ranks]
        self.group.run([rank.plan_next for rank in self.ranks])
        if self.is_verbose:
            for rank in self.ranks:
                print(f"step {index}, rank {rank.index}: {rank.plan}")
        self.check_agreement(decode_steps)
        for rank, events in zip(self.ranks, self.events, strict=True):
            rank.take_plan()
            events.after_plan()
            rank.process_in_flight()
            events.disturb()
            rank.finish()
            events.end_of_step()
        self.check_progress()

    def check_agreement(self, decode_steps: list[int]) -> None:
        """Every rank runs the same kind of step, after the vote that the rules ask for."""
        plans = [rank.plan for rank in self.ranks]
        kinds = {plan.kind for plan in plans if plan is not None}
        assert len(kinds) == 1, f"ranks run different steps: {plans}"
        flags = {rank.flags for rank in self.ranks}
        assert len(flags) == 1
        ballots = [rank.twin.ballot for rank in self.ranks]
        rounds = {ballot.round for ballot in ballots if ballot is not None}
        assert rounds == {self.expected_round(decode_steps)}, f"{rounds}, decode steps {decode_steps}"
        if not self.has_peers and self.workload.config.engine_type == "normal":
            self.check_vote(rounds.pop(), kinds.pop())
        for log in self.group.log if not self.has_peers else ():
            assert log[0][0] == "max", "the flags come first"
            assert len(log) <= 3

    def expected_round(self, decode_steps: list[int]) -> VoteRound:
        """The vote of this step, from what all ranks know."""
        config, flags = self.workload.config, self.ranks[0].flags
        assert len(set(decode_steps)) == 1, f"decode steps differ: {decode_steps}"
        count = decode_steps[0]
        if config.engine_type != "normal":
            return VoteRound.PREFILL if config.engine_type == "prompt" else VoteRound.NONE
        if self.workload.is_default and not flags.running:
            return VoteRound.ANY
        is_any = count > 0 and count % config.prefill_interval_any == 0
        if self.workload.is_default and flags.half_prefilled:
            is_any = is_any or (count > 0 and count % config.prefill_interval_continue == 0)
        if is_any:
            return VoteRound.ANY
        return VoteRound.ALL if count % config.prefill_interval_all == 0 else VoteRound.NONE

    def check_vote(self, vote: VoteRound, kind: StepKind) -> None:
        """A won vote becomes a prefill wherever somebody could prepare one, and nothing else does."""
        wants = [rank.twin.ballot is not None and rank.twin.ballot.wants for rank in self.ranks]
        is_won = (vote == VoteRound.ANY and any(wants)) or (vote == VoteRound.ALL and all(wants))
        asked = [rank.twin.prepared is not None for rank in self.ranks]
        assert asked == (wants if is_won else [False] * len(wants))
        for rank, does_want, was_asked in zip(self.ranks, wants, asked, strict=True):
            rank.steps_wanting = rank.steps_wanting + 1 if does_want and not was_asked else 0
            assert rank.steps_wanting <= self.workload.config.prefill_interval_any, "a lone rank waits for ever"
        has_prefill = any(rank.twin.prepared for rank in self.ranks)
        assert kind == (StepKind.PREFILL if has_prefill else StepKind.DECODE)

    def check_progress(self) -> None:
        has_moved = any(rank.has_moved for rank in self.ranks)
        is_blocked = self.has_peers or any(events.is_blocked for events in self.events)
        has_work = any(rank.is_busy for rank in self.ranks)
        self.idle_steps = 0 if has_moved or is_blocked or not has_work else self.idle_steps + 1
        if self.workload.is_default:
            assert self.idle_steps <= MAX_IDLE_STEPS, "the scheduler stands still"

    def whole_outputs(self) -> dict[str, list[int]]:
        """Outputs by request, of those that nothing cut off."""
        outputs: dict[str, list[int]] = {}
        for rank in self.ranks:
            outputs |= rank.ledger.whole_outputs()
        return outputs


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("seed", type=int)
    parser.add_argument("policy", nargs="?", default="default")
    parser.add_argument("-v", "--verbose", action="store_true")
    parser.add_argument("--cores", nargs="+", default=CORE_NAMES, choices=CORE_NAMES)
    options = parser.parse_args()
    workload = make_workload(options.seed, options.policy)
    print(workload)
    num_steps = Lockstep([load_core(name) for name in options.cores], workload, options.verbose).run()
    print(f"{num_steps} steps, nothing wrong")


if __name__ == "__main__":
    main()
