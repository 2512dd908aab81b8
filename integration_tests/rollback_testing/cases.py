"""Cases: a point of a history, and the outcomes of the rounds from there on."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

import numpy as np

from rollback_testing.bench import Bench
from rollback_testing.history import History
from rollback_testing.plans import Ids
from rollback_testing.rounds import Life, Outcome, play_round


@dataclass
class Case:
    """start: tokens in the cache at first."""

    history: History
    start: int
    outcomes: Sequence[Outcome]
    seed: int = 0
    is_async: bool = False

    def begin(self, bench: Bench) -> Life:
        """A sequence whose memory holds what the first round may read, and poison."""
        memory, masks = self.history.memory[self.start], bench.readable.next(self.start)
        lane = bench.lane(self.history.text, memory, masks)
        name = f"case {self.seed} ({'async' if self.is_async else 'sync'}, {list(self.outcomes)} from {self.start})"
        return Life(name, self.history, lane, self.start, np.random.default_rng(self.seed), self.is_async)


def run_cases(bench: Bench, cases: Sequence[Case], batch_size: int = 96) -> int:
    """Play the cases, many in one step; the number of rounds."""
    count = 0
    for begin in range(0, len(cases), batch_size):
        batch = cases[begin : begin + batch_size]
        lives = [case.begin(bench) for case in batch]
        for number in range(max(len(case.outcomes) for case in batch)):
            live = [(life, case) for life, case in zip(lives, batch, strict=True) if number < len(case.outcomes)]
            play_round(bench, [life for life, _ in live], [case.outcomes[number] for _, case in live])
            count += len(live)
        for life in lives:
            bench.free(life.lane)
    return count


def all_outcomes(draft_length: int) -> list[Outcome]:
    """Every (verified, accepted)."""
    return [(verified, accepted) for verified in range(draft_length + 1) for accepted in range(verified + 1)]


def random_outcome(random: np.random.Generator, draft_length: int) -> Outcome:
    """Any verify length, the full one as likely as all others, and any number of accepted drafts."""
    verified = int(random.choice([draft_length, random.integers(0, draft_length + 1)]))
    return verified, int(random.integers(0, verified + 1))


def random_outcomes(random: np.random.Generator, draft_length: int, rounds: int) -> list[Outcome]:
    return [random_outcome(random, draft_length) for _ in range(rounds)]


def random_text(seed: int, vocab_size: int, length: int) -> Ids:
    """Tokens without the special ones at either end of the vocabulary."""
    return np.random.default_rng(seed).integers(5, vocab_size - 20, length, dtype=np.int32)
