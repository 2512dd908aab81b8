"""Texts for training and measuring: stretches of the corpus, and what the backbone writes behind prompts from it."""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np
import torch
from numpy.typing import NDArray
from tools.train.drafter import continuations
from tools.train.drafter.library import Shelf
from tools.train.drafter.target import Target
from torch import Tensor

from thalweg.interfaces import ConfigError

LEAST_PROMPT = 8
"""Tokens of the shortest prompt; the longest is half of the text."""


@dataclass(frozen=True, slots=True)
class Stretches:
    """Random stretches of a stream; each begins with BOS, as every prompt does."""

    stream: NDArray[np.uint16]
    bos: int

    def draw(self, count: int, length: int, random: np.random.Generator) -> Tensor:
        """int64 [count, length] on the host. Raises ConfigError for a stream that is shorter."""
        if len(self.stream) < length:
            raise ConfigError(f"the stream has {len(self.stream)} tokens; {length} are needed")
        begins = random.integers(len(self.stream) - length + 1, size=(count, 1))
        texts = self.stream[begins + np.arange(length)].astype(np.int64)
        texts[:, 0] = self.bos
        return torch.from_numpy(texts)


def read_corpus(target: Target, stretches: Stretches, count: int, length: int, random: np.random.Generator) -> Shelf:
    """Texts of the corpus as the backbone sees them."""
    texts = stretches.draw(count, length, random)
    return Shelf.read(target, texts, torch.ones(count, dtype=torch.int64), torch.zeros(count, dtype=torch.bool))


def write_for_training(
    target: Target, stretches: Stretches, count: int, length: int, random: np.random.Generator
) -> Shelf:
    """Texts that the backbone wrote behind prompts of the corpus, every second one greedily.

    Anchors are what it wrote, not the prompts.
    """
    prompts = torch.from_numpy(random.integers(LEAST_PROMPT, length // 2 + 1, size=count))
    return _written(target, stretches.draw(count, length, random), prompts, torch.arange(count) % 2 == 0)


def write_for_measuring(target: Target, prompts: Tensor, length: int, *, greedy: bool) -> Shelf:
    """Continuations of `length` tokens behind prompts int64 [n, P], all greedy or all drawn at temperature 1."""
    count, prompt_length = prompts.shape
    texts = torch.nn.functional.pad(prompts, (0, length))
    return _written(target, texts, torch.full((count,), prompt_length), torch.full((count,), greedy))


def _written(target: Target, texts: Tensor, prompt_lengths: Tensor, is_greedy: Tensor) -> Shelf:
    device = target.device
    written = continuations.write(target, texts.to(device), prompt_lengths.to(device), is_greedy.to(device))
    return Shelf.read(target, written, prompt_lengths, is_greedy)
