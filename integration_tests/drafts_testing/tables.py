"""A language model that is a table: the logits that follow a context.

Letters: K rows of the table, V vocabulary, n contexts.
"""

from __future__ import annotations

from collections.abc import Sequence
from enum import Enum

import torch

_MULTIPLIER = 6364136223846793005
_UNSEEN = -1


class Memory(Enum):
    """How much of the text before a token its logits depend on."""

    ONE_TOKEN = 1
    TWO_TOKENS = 2
    EVERYTHING = 3
    """A hash of the whole text: after one wrong, missing or misplaced token all logits differ."""


class Tables:
    """Logits by context. A context is an int64 state, which every token advances; it stands for the text so far.

    logits: float32 [K, V]; K is V with a memory of one token and (V + 1) ** 2 with two.
    """

    def __init__(self, logits: torch.Tensor, memory: Memory = Memory.ONE_TOKEN) -> None:
        self.logits = logits
        self.memory = memory
        self.num_rows, self.vocab_size = logits.shape
        expected = {Memory.ONE_TOKEN: self.vocab_size, Memory.TWO_TOKENS: (self.vocab_size + 1) ** 2}
        assert self.num_rows == expected.get(memory, self.num_rows)

    @staticmethod
    def random(
        vocab_size: int, seed: int, memory: Memory = Memory.ONE_TOKEN, *, spread: float = 1.0, grain: float = 0.0
    ) -> Tables:
        """Normal logits. spread: their deviation. grain: round them to its multiples, so that many are equal."""
        rows = {Memory.ONE_TOKEN: vocab_size, Memory.TWO_TOKENS: (vocab_size + 1) ** 2, Memory.EVERYTHING: 997}
        logits = spread * torch.randn(rows[memory], vocab_size, generator=torch.Generator().manual_seed(seed))
        return Tables(torch.round(logits / grain) * grain if grain else logits, memory)

    def with_noise(self, seed: int, scale: float) -> Tables:
        """Tables of a drafter that is nearly right."""
        noise = torch.randn(self.logits.shape, generator=torch.Generator().manual_seed(seed))
        return Tables(self.logits + scale * noise, self.memory)

    def inverted(self) -> Tables:
        """Tables of a drafter that prefers what the target does not."""
        return Tables(-self.logits, self.memory)

    @property
    def start(self) -> int:
        """The state before the first token."""
        return 0

    def advance(self, states: torch.Tensor, token_ids: torch.Tensor) -> torch.Tensor:
        """States int64 [n] after one more token each; token_ids int [n]."""
        token_ids = token_ids.long()
        if self.memory is Memory.ONE_TOKEN:
            return token_ids
        if self.memory is Memory.TWO_TOKENS:
            width = self.vocab_size + 1
            return states % width * width + token_ids + 1
        return states * _MULTIPLIER + token_ids + 1

    def states(self, token_ids: Sequence[int]) -> torch.Tensor:
        """States int64 [n] after each token of a text."""
        state, states = torch.full((1,), self.start, dtype=torch.int64), []
        for token in token_ids:
            state = self.advance(state, torch.tensor([token]))
            states.append(state)
        return torch.cat(states)

    def rows(self, states: torch.Tensor) -> torch.Tensor:
        """Table rows int64 [n]."""
        return states if self.memory is not Memory.EVERYTHING else scramble(states) % self.num_rows

    def after(self, states: torch.Tensor) -> torch.Tensor:
        """Logits float32 [n, V], the caller's to overwrite."""
        return self.logits[self.rows(states)]


class Contexts:
    """The state after every cached token, by state slot and position: what a cache is to a real model.

    An entry that was never written, belongs to another sequence or to a rejected draft leads to other logits.
    """

    def __init__(self, tables: Tables, num_slots: int, length: int) -> None:
        self.tables = tables
        self._states = torch.full((num_slots, length), _UNSEEN, dtype=torch.int64)

    def extend(
        self, slots: torch.Tensor, counts: torch.Tensor, positions: torch.Tensor, token_ids: torch.Tensor
    ) -> torch.Tensor:
        """Write the states after the rows of a step and return them, int64 [T].

        slots, counts: int [N] state slot and rows of each sequence. positions, token_ids: int64 [T].
        """
        counts, slots = counts.long(), slots.long()
        slot_of = torch.repeat_interleave(slots, counts, output_size=token_ids.shape[0])
        if self.tables.memory is Memory.ONE_TOKEN:
            states = token_ids.long()
        else:
            states = torch.empty_like(positions)
            first = counts.cumsum(0) - counts
            current = self._before(slots, positions[first])
            for place in range(int(counts.max())):
                alive = place < counts
                rows = (first + place)[alive]
                current[alive] = states[rows] = self.tables.advance(current[alive], token_ids[rows])
        self._states[slot_of, positions] = states
        return states

    def with_newest(self, slots: torch.Tensor, positions: torch.Tensor, token_ids: torch.Tensor) -> torch.Tensor:
        """States int64 [N] after one token each that is in no cache yet; positions: int [N], its own."""
        return self.tables.advance(self._before(slots.long(), positions.long()), token_ids)

    def copy(self, pairs: torch.Tensor) -> None:
        """pairs: int64 [k, 2] (source, destination) slots."""
        self._states[pairs[:, 1]] = self._states[pairs[:, 0]]

    def _before(self, slots: torch.Tensor, positions: torch.Tensor) -> torch.Tensor:
        states = self._states[slots, (positions - 1).clamp(min=0)]
        return torch.where(positions > 0, states, self.tables.start)


def scramble(values: torch.Tensor) -> torch.Tensor:
    """Hashes int64 [n] from 0 to 2**62 - 1."""
    values = (values ^ (values >> 29)) * -4658895280553007687
    values = (values ^ (values >> 32)) * -7723592293110705685
    return (values ^ (values >> 31)) & (2**62 - 1)


def unit(values: torch.Tensor) -> torch.Tensor:
    """Hashes as float64 [n] from 0 to 1."""
    return scramble(values).double() / 2.0**62
