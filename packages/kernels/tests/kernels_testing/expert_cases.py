"""Experts, tokens and slots at random."""

from __future__ import annotations

from typing import NamedTuple

import torch
from torch import Tensor

from thalweg.kernels import Mxfp8Rows
from thalweg.kernels.reference.quant import dequantize_mxfp4, dequantize_mxfp8, quantize_mxfp8


class Checkpoint(NamedTuple):
    """Weights of experts as a checkpoint has them."""

    codes: Tensor
    """uint8 [E, o, i / 2]"""
    scales: Tensor
    """uint8 [E, o, i / 32]"""


def random_checkpoint(num_experts: int, rows: int, columns: int, seed: int = 0) -> Checkpoint:
    """All codes, and scales over a few binades, on the default device; the same on every one."""
    generator = torch.Generator().manual_seed(seed)
    codes = torch.randint(256, (num_experts, rows, columns // 2), generator=generator, device="cpu").to(torch.uint8)
    scales = torch.randint(116, 124, (num_experts, rows, columns // 32), generator=generator, device="cpu")
    device = torch.get_default_device()
    return Checkpoint(codes.to(device), scales.to(torch.uint8).to(device))


def random_rows(num_rows: int, columns: int, seed: int = 0) -> Mxfp8Rows:
    """Normal rows of different sizes, quantised, on the default device."""
    generator = torch.Generator().manual_seed(seed)
    values = torch.randn(num_rows, columns, generator=generator, device="cpu")
    sizes = torch.exp(torch.randn(num_rows, columns // 32, generator=generator, device="cpu"))
    rows = quantize_mxfp8(values * sizes.repeat_interleave(32, 1))
    device = torch.get_default_device()
    return Mxfp8Rows(*(part.to(device) for part in rows))


def random_slots(
    num_tokens: int, slots: int, num_experts: int, seed: int = 0, unused: float = 0.1
) -> tuple[Tensor, Tensor]:
    """Ids int64 [T, k] of different experts, some of them -1, and weights float32 [T, k], on the default device."""
    generator = torch.Generator().manual_seed(seed)
    scores = torch.rand(num_tokens, num_experts, generator=generator, device="cpu")
    ids = scores.argsort(1)[:, :slots]
    dropped = torch.rand(num_tokens, slots, generator=generator, device="cpu") < unused
    weights = torch.rand(num_tokens, slots, generator=generator, device="cpu")
    device = torch.get_default_device()
    return torch.where(dropped, -1, ids).to(device), torch.where(dropped, 0, weights).to(device)


def product(x: Mxfp8Rows, checkpoint: Checkpoint, row: int, expert: int) -> Tensor:
    """One row by one expert in float64, [o]."""
    weight = dequantize_mxfp4(checkpoint.codes[expert], checkpoint.scales[expert], torch.float64)
    value = dequantize_mxfp8(x.codes[row], x.scales[row], torch.float64)
    result: Tensor = weight @ value
    return result
