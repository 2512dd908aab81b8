"""Sequences over a paged cache that are prefilled, decoded and drafted for, every draft compared with the dense one."""

from __future__ import annotations

import functools
from collections.abc import Sequence

import numpy as np
import torch
from model_testing.cases import Case
from model_testing.paged_cache import Running
from torch import Tensor


class RecordingSampler:
    """Draws the most likely token or any other, and keeps the logits it was shown."""

    def __init__(self, seed: int = 0) -> None:
        self.logits: list[Tensor] = []
        self._generator = torch.Generator().manual_seed(seed)

    def sample(self, place: int, logits: Tensor) -> Tensor:
        assert place == len(self.logits)
        assert logits.dtype == torch.float32
        self.logits.append(logits.clone())
        rows, vocab = logits.shape
        other = torch.randint(vocab, (rows,), generator=self._generator)
        drawn = torch.where(torch.rand(rows, generator=self._generator) < 0.5, logits.argmax(-1), other)
        logits.fill_(torch.nan)  # a sampler may overwrite them
        return drawn.int()


class DraftSession:
    """Drives sequences of one cache whose tokens are known beforehand, so that any draft can be made to hold."""

    def __init__(self, case: Case, temperatures: Sequence[float], seed: int = 0, num_sequences: int = 15) -> None:
        self.case, self.temperatures = case, tuple(temperatures)
        self.cache = case.cache(temperatures, num_blocks=20 * num_sequences, num_slots=num_sequences + 1, seed=seed)
        self.dense = case.dense()
        self.group: list[Running] = []
        self.num_compared = 0
        self._rng = np.random.default_rng(seed)
        self._chunks: list[int] = []
        self._prompts: list[int] = []
        self._tokens: list[Tensor] = []
        self._keys = functools.cache(self._dense_keys)

    def add(self, tokens: Tensor, prompt_length: int, chunk: int) -> None:
        """chunk: tokens of the prompt in one step, at most."""
        self.group.append(self.cache.add(tokens))
        self._tokens.append(tokens)
        self._prompts.append(prompt_length)
        self._chunks.append(chunk)

    def prefill(self) -> None:
        while True:
            left = [prompt - running.done for prompt, running in zip(self._prompts, self.group, strict=True)]
            sizes = [min(size, chunk) for size, chunk in zip(left, self._chunks, strict=True)]
            chunks = [(running, size) for running, size in zip(self.group, sizes, strict=True) if size]
            if not chunks:
                return
            self.cache.prefill(chunks)

    def decode(self) -> None:
        """One step: the anchor and up to G drafts, of which any number holds; rows of those that do not are undone."""
        length = len(self.temperatures)
        query = [int(self._rng.integers(1, length + 2)) for _ in self.group]
        accepted = [int(self._rng.integers(0, count)) for count in query]
        begins = [running.done for running in self.group]
        for running, held in zip(self.group, accepted, strict=True):
            running.tokens = running.tokens.clone()
            wrong = running.tokens[running.done + 1 + held :]
            wrong.copy_((wrong + 3) % 50 + 60)
        self.cache.decode(list(zip(self.group, query, strict=True)))
        for running, tokens, held, begin in zip(self.group, self._tokens, accepted, begins, strict=True):
            running.tokens, running.done = tokens, begin + held + 1

    def draft_and_compare(self) -> None:
        """Draft for every sequence; logits and confidences must be those of the dense drafter, bit for bit."""
        length = len(self.temperatures)
        sampler = RecordingSampler(int(self._rng.integers(1 << 30)))
        anchors = [int(running.tokens[running.done]) for running in self.group]
        drafts, confidences = self.cache.propose(self.group, anchors, sampler)
        assert drafts.dtype == torch.int32
        assert confidences.dtype == torch.float32
        assert drafts.shape == confidences.shape == (len(self.group), length)
        for number, (running, anchor) in enumerate(zip(self.group, anchors, strict=True)):
            rows = self.dense.block(self._keys(number), anchor, running.done, length)
            logits, sure = self.dense.heads(rows, anchor, drafts[number].tolist(), self.temperatures)
            where = f"sequence {number} at {running.done}"
            assert torch.equal(torch.stack([shown[number] for shown in sampler.logits]), logits), where
            assert torch.equal(confidences[number], sure), where
            self.num_compared += 1

    def run(self, num_steps: int) -> None:
        """Prefill, then draft after the prompt and after each of some decode steps."""
        self.prefill()
        self.draft_and_compare()
        for _ in range(num_steps):
            self.decode()
            self.draft_and_compare()
        assert self.num_compared == len(self.group) * (num_steps + 1)

    def _dense_keys(self, number: int) -> list[Tensor]:
        return self.dense.main_keys(self.case.features(self._tokens[number]))
