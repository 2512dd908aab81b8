"""Speculative rounds with forced drafts, every byte compared with the run token by token."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

import numpy as np
import torch

from rollback_testing.bench import Bench
from rollback_testing.history import History
from rollback_testing.plans import DecodeRow, Flight, Ids, Lane

Pattern = Sequence[tuple[int, int]]
"""(drafts verified, drafts that hold) of each round."""


@dataclass
class Case:
    """A sequence that starts from a point of its history and goes through rounds.

    is_async: from the second round on the host plans before it has seen the results of the round before.
    """

    history: History
    start: int
    pattern: Pattern
    seed: int = 0
    is_async: bool = False

    def __str__(self) -> str:
        kind = "async" if self.is_async else "sync"
        return f"{kind} from {self.start} cached tokens, (verified, accepted) {list(self.pattern)}, seed {self.seed}"


@dataclass
class _Running:
    case: Case
    lane: Lane
    cached: int
    random: np.random.Generator
    flight: Flight | None = None

    def row(self, draft_length: int, vocab_size: int, verified: int, accepted: int) -> DecodeRow:
        """Drafts of which exactly `accepted` hold if `verified` are looked at; the others are noise."""
        text = self.case.history.text
        drafts = self.random.integers(0, vocab_size, draft_length, dtype=np.int32)
        drafts[:accepted] = text[self.cached + 1 : self.cached + 1 + accepted]
        if accepted < verified and drafts[accepted] == text[self.cached + 1 + accepted]:
            drafts[accepted] = (drafts[accepted] + 1) % vocab_size
        return DecodeRow(self.lane, self.cached, drafts, verified, self.flight if self.case.is_async else None)


def run_cases(bench: Bench, cases: Sequence[Case], batch_size: int = 96) -> int:
    """Run the cases, many in one step, and compare after every round; the number of comparisons.

    Before each round all bytes are poisoned that the round may not read.
    """
    count = 0
    for begin in range(0, len(cases), batch_size):
        running = [_start(bench, case) for case in cases[begin : begin + batch_size]]
        rounds = {len(one.case.pattern) for one in running}
        for number in range(max(rounds)):
            live = [one for one in running if number < len(one.case.pattern)]
            _round(bench, live, number)
            count += len(live)
        bench.free([one.lane for one in running])
    return count


def _start(bench: Bench, case: Case) -> _Running:
    lane = bench.lane(case.history.text, case.history.memory[case.start], bench.readable.next(case.start))
    return _Running(case, lane, case.start, np.random.default_rng(case.seed))


def _round(bench: Bench, running: Sequence[_Running], number: int) -> None:
    vocab_size = bench.model.config.vocab_size
    rows = [one.row(bench.draft_length, vocab_size, *one.case.pattern[number]) for one in running]
    before = [bench.memory(one.lane) for one in running]
    logits = bench.decode(rows)
    for one, row, values, old in zip(running, rows, logits, before, strict=True):
        verified, accepted = one.case.pattern[number]
        history, cached = one.case.history, one.cached
        for place in range(accepted + 1):
            same = torch.equal(values[place], history.logits[cached + place])
            assert same, f"logits of row {place} differ in round {number} of {one.case}"
        new = bench.memory(one.lane)
        allowed = bench.readable.written(cached, 1 + verified)
        for name, was, now, mask in zip(("slot", "blocks"), old, new, allowed, strict=True):
            assert bool(((was == now) | mask).all()), f"round {number} of {one.case} wrote elsewhere in its {name}"
        one.cached += 1 + accepted
        expected, kept = history.memory[one.cached], bench.readable.kept(one.cached)
        for name, want, now, mask in zip(("slot", "blocks"), expected, new, kept, strict=True):
            wrong = ((want != now) & mask).nonzero()
            assert not wrong.numel(), f"{name} bytes {wrong[:8].tolist()} differ after round {number} of {one.case}"
        one.flight = Flight(cached, row.drafts)
        bench.poison_unreadable(one.lane, bench.readable.next(one.cached))


def all_outcomes(draft_length: int) -> list[tuple[int, int]]:
    """Every (verified, accepted)."""
    return [(verified, accepted) for verified in range(draft_length + 1) for accepted in range(verified + 1)]


def random_pattern(random: np.random.Generator, draft_length: int, rounds: int) -> Pattern:
    """Rounds of any verify length and any number of accepted drafts, full ones as likely as short ones."""
    pattern = []
    for _ in range(rounds):
        verified = int(random.choice([draft_length, random.integers(0, draft_length + 1)]))
        pattern.append((verified, int(random.integers(0, verified + 1))))
    return pattern


def random_text(seed: int, vocab_size: int, length: int) -> Ids:
    """Tokens without the special ones at either end of the vocabulary."""
    return np.random.default_rng(seed).integers(5, vocab_size - 20, length, dtype=np.int32)
