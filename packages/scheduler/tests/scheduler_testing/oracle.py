"""A model that is a function: each token follows from all tokens before it, so every output is known in advance.

A request that is neither cut off nor starved produces the same tokens however its steps are cut, in whichever order
they run, and whether or not it is recomputed. Two sequences with equal tokens go on alike.
"""

from __future__ import annotations

import random

import numpy as np
from numpy.typing import NDArray

from thalweg.interfaces import SequenceStatus

EOS = 1
VOCAB_SIZE = 1000
PAD = VOCAB_SIZE - 1
_PRIME = (1 << 61) - 1
_WORD = (1 << 64) - 1


def extend(history: int, token_id: int) -> int:
    """The number that stands for a sequence of tokens, one token longer."""
    return (history * 1_000_003 + token_id + 7) % _PRIME


def mix(history: int, salt: int = 0) -> int:
    """A number from 0 to 2^31 - 1 that looks unrelated to those of other histories."""
    return ((history ^ (history >> 29)) + salt * 0x632BE59BD9B4E019) * 0x9E3779B97F4A7C15 % (_WORD + 1) >> 33


class Stream:
    """All tokens of one sequence, those after its end included: the device does not know where it ends."""

    def __init__(self, prompt: list[int], eos_period: int) -> None:
        """eos_period: one output token in so many is an EOS; 0 = none is."""
        self.eos_period = eos_period
        self._tokens: list[int] = []
        self._histories = np.zeros(256, np.int64)
        for token_id in prompt:
            self._append(token_id)

    @classmethod
    def from_key(cls, key: str, prompt_length: int, eos_period: int) -> Stream:
        generator = random.Random(key)
        return cls([generator.randrange(2, PAD) for _ in range(prompt_length)], eos_period)

    def fork(self, length: int, last_token_id: int | None) -> Stream:
        """A stream that shares the first `length` tokens, but perhaps for the last of them."""
        tokens = self.tokens(0, length)
        if last_token_id is not None:
            tokens[-1] = last_token_id
        return Stream(tokens, self.eos_period)

    def token(self, position: int) -> int:
        self._reach(position + 1)
        return self._tokens[position]

    def tokens(self, start: int, stop: int) -> list[int]:
        self._reach(stop)
        return self._tokens[start:stop]

    def history(self, position: int) -> int:
        """Stands for the tokens at positions 0..position."""
        self._reach(position + 1)
        return int(self._histories[position])

    def histories(self, start: int, stop: int) -> NDArray[np.int64]:
        self._reach(stop)
        return self._histories[start:stop]

    def drafts(self, position: int, count: int) -> list[int]:
        """Guesses of the tokens at position, position + 1, ...: some right ones, then wrong ones."""
        num_right = mix(self.history(position - 1), salt=1) % (count + 1)
        tokens = self.tokens(position, position + count)
        return [token if index < num_right else token ^ 1 for index, token in enumerate(tokens)]

    def expected_end(
        self, length: int, prompt_length: int, max_tokens: int, ignore_eos: bool, max_model_len: int
    ) -> tuple[int, SequenceStatus]:
        """Length and status of a sequence that has `length` tokens now and goes on undisturbed."""
        while True:
            token_id = self.token(length)
            length += 1
            if token_id == EOS and not ignore_eos:
                return length, SequenceStatus.FINISHED_STOPPED
            if length > max_model_len or length - prompt_length == max_tokens:
                return length, SequenceStatus.FINISHED_LENGTH_CAPPED

    def _reach(self, length: int) -> None:
        while len(self._tokens) < length:
            number = mix(int(self._histories[len(self._tokens) - 1]))
            is_eos = self.eos_period and number % self.eos_period == 0
            self._append(EOS if is_eos else 2 + number % (PAD - 2))

    def _append(self, token_id: int) -> None:
        position = len(self._tokens)
        if position == len(self._histories):
            self._histories = np.concatenate([self._histories, np.zeros_like(self._histories)])
        before = int(self._histories[position - 1]) if position else 0
        self._histories[position] = extend(before, token_id)
        self._tokens.append(token_id)
