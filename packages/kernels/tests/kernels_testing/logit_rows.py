"""Rows of logits of many kinds, with filters that differ from row to row."""

from __future__ import annotations

import math

import torch
from torch import Tensor

KINDS = ("normal", "peaked", "ties", "equal", "two", "hidden", "tiny", "huge", "sorted", "tail", "clustered", "flat")


def logits_of(kind: str, rows: int, vocabulary: int, seed: int = 0) -> Tensor:
    """float32 [rows, vocabulary]."""
    generator = torch.Generator().manual_seed(seed)
    normal = torch.randn(rows, vocabulary, generator=generator)
    uniform = torch.rand(rows, vocabulary, generator=generator)
    kinds = {
        "normal": normal,
        "peaked": 4 * normal,
        "ties": (2 * normal).round(),
        "equal": torch.zeros_like(normal),
        "two": (uniform < 0.5).float() * 1e-3,
        "hidden": normal.masked_fill((uniform < 0.95) & (torch.arange(vocabulary) > 0), -math.inf),
        "tiny": normal * 1e-30,
        "huge": normal * 1e37,
        "sorted": (3 * normal).sort(-1, descending=True).values,
        "tail": normal - 30 + 30 * (torch.arange(vocabulary) == vocabulary // 2),
        "clustered": torch.where(uniform < 0.01, 10 + 1e-5 * normal, normal),
        "flat": normal * 1e-4,
    }
    return kinds[kind].contiguous()


def filters_of(rows: int, seed: int = 0) -> tuple[Tensor, ...]:
    """temperature, top-p, top-k, min-p of rows that differ in all of them."""
    i = torch.arange(rows) + seed
    return (
        torch.tensor([1.0, 0.7, 1.5, 0.0, 0.05, 2.0])[i % 6],
        torch.tensor([1.0, 0.9, 0.5, 0.99, 0.0, 0.999999, 0.1, 1.0])[i % 8],
        torch.tensor([-1, 7, -1, 300, -1, 3, 100_000, -1, -1, 1, -1], dtype=torch.int32)[i % 11],
        torch.tensor([0.0, 0.05, 0.0, 1e-4, 0.0, 0.0, 0.0, 0.9, 0.0, 1e-9, 0.0, 1.0, 0.0])[i % 13],
    )


def streams_of(rows: int) -> tuple[Tensor, Tensor]:
    return torch.arange(rows) * 7919 - 5, torch.arange(rows) * 11


def on(device: torch.device, *tensors: Tensor) -> list[Tensor]:
    return [tensor.to(device) for tensor in tensors]
