"""Texts that the backbone itself writes, many at once: greedy ones, and samples at temperature 1."""

from __future__ import annotations

import torch
from tools.train.drafter.lockstep import LockstepMemory
from tools.train.drafter.target import Target
from torch import Tensor

from thalweg.model import ForwardBatch


@torch.no_grad()
def write(
    target: Target, texts: Tensor, prompt_lengths: Tensor, is_greedy: Tensor, generator: torch.Generator
) -> Tensor:
    """int64 [n, L]: texts int64 [n, L] up to their prompt lengths int64 [n], the rest written by the backbone.

    target: of `Target.writer`. is_greedy: bool [n], the others are drawn at temperature 1. Prompts have at least one
    token. All tensors and the generator lie on the target's device.
    """
    count, length = texts.shape
    memory = LockstepMemory(target.model.config, count, length, target.model.numerics, target.device)
    reach = max(target.model.config.engram_max_ngram_size, 1)
    written = texts.clone()
    for position in range(length - 1):
        recent = written[:, max(position + 1 - reach, 0) : position + 1]
        positions = torch.full((count,), position, device=target.device)
        batch = ForwardBatch(recent[:, -1].contiguous(), positions, target.ngram_ids(recent)[:, -1].contiguous())
        drawn = _draw(target.model.logits(target.model.forward(batch, memory)), is_greedy, generator)
        written[:, position + 1] = torch.where(position + 1 < prompt_lengths, written[:, position + 1], drawn)
        memory.advance()
    return written


def _draw(logits: Tensor, is_greedy: Tensor, generator: torch.Generator) -> Tensor:
    """int64 [n]: the likeliest token, or one drawn in proportion."""
    sampled = torch.multinomial(torch.softmax(logits, -1), 1, generator=generator).squeeze(1)
    return torch.where(is_greedy, logits.argmax(-1), sampled)
