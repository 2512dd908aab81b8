"""Texts that the backbone itself writes, many at once: greedy ones, and samples at temperature 1."""

from __future__ import annotations

import torch
from tools.train.drafter.lockstep import LockstepMemory
from tools.train.drafter.recording import recorded
from tools.train.drafter.target import Target
from torch import Tensor


@torch.no_grad()
def write(target: Target, texts: Tensor, prompt_lengths: Tensor, is_greedy: Tensor) -> Tensor:
    """int64 [n, L]: texts int64 [n, L] up to their prompt lengths int64 [n], the rest written by the backbone.

    is_greedy: bool [n], the others are drawn at temperature 1 with the device's random numbers. Prompts have at least
    one token, texts more than WARM_UP_CALLS. All tensors lie on the target's device.
    """
    count, length = texts.shape
    memory = LockstepMemory(target.config, count, length, target.model.numerics, target.device)
    written = texts.clone()
    noise = torch.empty(count, target.config.vocab_size, device=target.device)

    def step() -> None:
        """Read the token at the memory's position and write the next one."""
        position, following = memory.position, memory.position + 1
        grams = target.grams(written, position).flatten(0, 1)
        tokens = written.index_select(1, position)
        logits = target.model.logits(target.forward(tokens, position.expand(count), grams, memory))
        # The largest of probabilities over exponential variables is a fair draw, and needs no word with the host.
        sampled = (torch.softmax(logits, -1) / noise).argmax(-1)
        drawn = torch.where(is_greedy, logits.argmax(-1), sampled)
        prompt = written.index_select(1, following).squeeze(1)
        written.index_copy_(1, following, torch.where(following < prompt_lengths, prompt, drawn).unsqueeze(1))
        position += 1

    run = step
    if target.device.type == "cuda":
        noise.exponential_()
        run = recorded(step, "steps of writing")
        memory.position.zero_()  # what the warm-up wrote is written again
        written.copy_(texts)
    for _ in range(length - 1):
        noise.exponential_()
        run()
    return written
