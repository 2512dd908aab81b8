"""Plausible mistakes of a drafter each change drafts or confidences: comparing with the dense drafter finds them.

The dense drafter makes the mistake; the package is right, so the two must differ.
"""

from __future__ import annotations

from collections.abc import Callable
from functools import cache

import pytest
import torch
from model_testing import dense_drafter, dense_features
from model_testing.cases import Case
from torch import Tensor

NAME = "two layers, a target with Engram"
LENGTH, PROMPT = 5, 40
TEMPERATURES = (1.0,) * LENGTH
DRAFTS = (11, 12, 13, 14, 15)


class FixedSampler:
    """Draws what it was told, and keeps the logits it was shown."""

    def __init__(self) -> None:
        self.logits: list[Tensor] = []

    def sample(self, place: int, logits: Tensor) -> Tensor:
        self.logits.append(logits.clone())
        return torch.full((logits.shape[0],), DRAFTS[place], dtype=torch.int32)


@pytest.fixture(scope="module")
def drafted(load_case: Callable[..., Case]) -> tuple[Tensor, Tensor]:
    """Logits [G, V] and confidences [G] of the package, after a prompt in one chunk."""
    case = load_case(NAME)
    paged = case.cache(TEMPERATURES)
    running = paged.add(case.tokens(PROMPT + 1))
    paged.prefill([(running, PROMPT)])
    sampler = FixedSampler()
    _, confidences = paged.propose([running], [int(running.tokens[PROMPT])], sampler)
    return torch.cat(sampler.logits), confidences[0]


@pytest.fixture(scope="module")
def dense_drafts(load_case: Callable[..., Case]) -> Callable[[str], tuple[Tensor, Tensor]]:
    case = load_case(NAME)
    tokens = case.tokens(PROMPT + 1)
    features = cache(lambda trap: case.features(tokens, trap))

    def compute(trap: str) -> tuple[Tensor, Tensor]:
        dense = case.dense(trap)
        keys = dense.main_keys(features(trap if trap in dense_features.TRAPS else ""))
        rows = dense.block(keys, int(tokens[PROMPT]), PROMPT, LENGTH)
        return dense.heads(rows, int(tokens[PROMPT]), DRAFTS, TEMPERATURES)

    return compute


def test_without_a_mistake_they_are_equal(
    drafted: tuple[Tensor, Tensor], dense_drafts: Callable[[str], tuple[Tensor, Tensor]]
) -> None:
    logits, confidences = dense_drafts("")
    assert torch.equal(drafted[0], logits)
    assert torch.equal(drafted[1], confidences)


@pytest.mark.parametrize("trap", [*dense_drafter.TRAPS, *dense_features.TRAPS])
def test_each_mistake_shows(
    trap: str, drafted: tuple[Tensor, Tensor], dense_drafts: Callable[[str], tuple[Tensor, Tensor]]
) -> None:
    logits, confidences = dense_drafts(trap)
    in_logits, in_confidences = not torch.equal(drafted[0], logits), not torch.equal(drafted[1], confidences)
    assert in_logits or in_confidences
    assert in_logits == (not trap.startswith("confidence"))
