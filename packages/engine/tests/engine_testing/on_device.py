"""Engines on a GPU for tests: which ops are asked for by name, and prompts that look like text."""

from __future__ import annotations

from functools import cache
from typing import Any

import numpy as np
import torch

from thalweg.engine.model_device import ModelDevice
from thalweg.kernels import unserved_ops
from thalweg.kernels.sm90.library import ARCHITECTURE


@cache
def overrides() -> tuple[tuple[str, str], ...]:
    """Ops without a kernel, by the reference."""
    return tuple((op, "reference") for op in unserved_ops("sm90", architecture=ARCHITECTURE))


def on_sm90(**options: Any) -> dict[str, Any]:
    """Options of an engine on the GPU."""
    return {"backend": "sm90", "kernels": overrides(), "check_lengths": True} | options


def prompts(count: int, vocab_size: int, *, seed: int = 0, longest: int = 60) -> list[list[int]]:
    """Random ids of random lengths, a few tokens said again and again."""
    random = np.random.default_rng(seed)
    lengths = random.integers(1, longest, count)
    return [[0, *random.choice(random.integers(5, vocab_size, 12), length).tolist()] for length in lengths]


class LogitWatch:
    """What the sampler saw: the logits of every row, by (sequence, context length)."""

    def __init__(self) -> None:
        self.rows: dict[tuple[int, int], torch.Tensor] = {}
        self._sample = ModelDevice.sample

    def sample(self, device: ModelDevice, forwarded: Any, inputs: Any) -> Any:
        """In place of `ModelDevice.sample`."""
        contexts = forwarded.prepared.context_lengths.tolist()
        logits = forwarded.logits.cpu()
        for row, (sequence, context) in enumerate(zip(inputs.sequence_ids.tolist(), contexts, strict=True)):
            if inputs.makes_output[row]:
                self.rows[sequence, context] = logits[row]
        return self._sample(device, forwarded, inputs)
