"""Speculative rounds with forced drafts, every byte compared with the run token by token."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

import numpy as np
import torch

from rollback_testing.bench import Bench, Memory
from rollback_testing.history import History
from rollback_testing.plans import DecodeRow, Flight, Lane
from rollback_testing.readable import Masks

Outcome = tuple[int, int]
"""(drafts verified, drafts that hold) of a round."""


@dataclass
class Life:
    """A sequence on its way."""

    name: str
    history: History
    lane: Lane
    cached: int
    """Tokens in the cache."""
    random: np.random.Generator
    is_async: bool = False
    """A round that follows another one directly is planned before the host has seen the results of that one."""
    flight: Flight | None = None

    def row(self, draft_length: int, vocab_size: int, outcome: Outcome) -> DecodeRow:
        """Drafts that make this the outcome; those nobody looks at are noise."""
        verified, accepted = outcome
        text = self.history.text
        drafts = self.random.integers(0, vocab_size, draft_length, dtype=np.int32)
        drafts[:accepted] = text[self.cached + 1 : self.cached + 1 + accepted]
        if accepted < verified and drafts[accepted] == text[self.cached + 1 + accepted]:
            drafts[accepted] = (drafts[accepted] + 1) % vocab_size
        return DecodeRow(self.lane, self.cached, drafts, verified, self.flight if self.is_async else None)


def play_round(bench: Bench, lives: Sequence[Life], outcomes: Sequence[Outcome]) -> None:
    """One decode step of these sequences, then drafts for all of them.

    Before each part all bytes are poisoned that it may not read.
    """
    vocab_size = bench.model.config.vocab_size
    rows = [life.row(bench.draft_length, vocab_size, outcome) for life, outcome in zip(lives, outcomes, strict=True)]
    before = [bench.memory(life.lane) for life in lives]
    logits = bench.decode(rows)
    for life, row, values, old, (verified, accepted) in zip(lives, rows, logits, before, outcomes, strict=True):
        what = f"{life.name} at {life.cached}, {verified} verified, {accepted} accepted"
        for place in range(accepted + 1):
            assert torch.equal(values[place], life.history.logits[life.cached + place]), f"logits {place} of {what}"
        _assert_written(old, bench.memory(life.lane), bench.readable.written(life.cached, 1 + verified), what)
        life.flight = Flight(life.cached, row.drafts)
        life.cached += 1 + accepted
        check_memory(bench, life)
    draft(bench, lives)


def check_memory(bench: Bench, life: Life) -> None:
    """Everything that a later step may read is what it is in the run token by token; everything else is poisoned."""
    kept, now = bench.readable.kept(life.cached), bench.memory(life.lane)
    expected = life.history.memory[life.cached]
    for part, want, found, mask in zip(("slot", "blocks"), expected, now, kept, strict=True):
        wrong = ((want != found) & mask).nonzero()
        assert not wrong.numel(), f"{part} of {life.name} with {life.cached} tokens: bytes {wrong[:8].tolist()} differ"
    bench.poison_unreadable(life.lane, kept)


def draft(bench: Bench, lives: Sequence[Life]) -> None:
    """Let the drafter propose, if there is one; then poison what the next step may not read."""
    if bench.drafter is not None:
        before = [bench.memory(life.lane) for life in lives]
        proposals = bench.propose([(life.lane, life.cached) for life in lives])
        for life, proposal, old in zip(lives, proposals, before, strict=True):
            what = f"drafts of {life.name} with {life.cached} tokens"
            assert proposal.equals(life.history.proposals[life.cached]), what
            _assert_written(old, bench.memory(life.lane), bench.readable.drafted(life.cached), what)
    for life in lives:
        bench.poison_unreadable(life.lane, bench.readable.next(life.cached))


def _assert_written(old: Memory, new: Memory, allowed: Masks, what: str) -> None:
    for part, was, now, mask in zip(("slot", "blocks"), old, new, allowed, strict=True):
        assert bool(((was == now) | mask).all()), f"{what}: written elsewhere in its {part}"
