"""Kernels that are fast and careless: what they make of a row depends on how many rows there are."""

from __future__ import annotations

import torch

from thalweg.kernels import Implementation, Registry, default_registry
from thalweg.kernels.reference.coupled import coupled_tokens
from thalweg.kernels.reference.vocabulary_rows import argmax_lowest


def careless_argmax(logits: torch.Tensor) -> torch.Tensor:
    """As `argmax_lowest`, with logits as far off as those of a product that was cut otherwise, if only more so."""
    return argmax_lowest(_off(logits))


def careless_coupled_tokens(logits: torch.Tensor, *parameters: torch.Tensor) -> torch.Tensor:
    """As `coupled_tokens`, with logits as above."""
    tokens: torch.Tensor = coupled_tokens(_off(logits), *parameters)
    return tokens


def careless_registry() -> Registry:
    """The kernels of the CPU, and these, which come first wherever nobody demands batch invariance."""
    made = {"argmax_lowest": careless_argmax, "coupled_tokens": careless_coupled_tokens}
    return default_registry().extended(
        Implementation(op=op, backend="cpu", provider="tilelang", function=function, priority=1, deterministic=True)
        for op, function in made.items()
    )


def _off(logits: torch.Tensor) -> torch.Tensor:
    return torch.round(logits) if logits.shape[0] > 1 else logits
