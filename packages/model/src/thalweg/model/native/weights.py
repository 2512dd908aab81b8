"""Checkpoint tensors on a device, in the formats they are stored in: moved once, joined by input, packed."""

from __future__ import annotations

from collections.abc import Sequence
from typing import NamedTuple

import torch

from thalweg.kernels import BoundOps, ExpertWeights, Fp8Weight
from thalweg.model.weights import TensorSource


class StoredTable(NamedTuple):
    """Rows in MXFP8, as a checkpoint has them."""

    codes: torch.Tensor
    """uint8 [rows, d]"""
    scales: torch.Tensor
    """uint8 [rows, d / 32]"""


class DeviceWeights:
    """Reads stored tensors by checkpoint name and puts them where the kernels run."""

    def __init__(self, source: TensorSource, ops: BoundOps, device: torch.device) -> None:
        self._source = source
        self._ops = ops
        self._device = device

    def plain(self, *names: str) -> torch.Tensor:
        """BF16 or F32 tensors in their own dtype, stacked along the first axis."""
        return torch.cat([self._source.tensor(name).to(self._device) for name in names]).contiguous()

    def fp8(self, *modules: str) -> Fp8Weight:
        """FP8 linears (names without `.weight`) of one input, stacked along the output axis."""
        stored = [self._source.quantized(module) for module in modules]
        codes, scales = (torch.cat([part.to(self._device) for part in parts]) for parts in zip(*stored, strict=True))
        weight: Fp8Weight = self._ops.pack_fp8_weight(codes, scales)
        return weight

    def experts(self, experts: Sequence[Sequence[str]]) -> ExpertWeights:
        """One matrix per expert, each stacked along the output axis from FP4 linears of one input.

        Of what is stored, one expert at a time is held beside the packed weights.
        """
        weights: ExpertWeights | None = None
        for number, modules in enumerate(experts):
            stored = [self._source.quantized(module) for module in modules]
            codes, scales = (torch.cat(parts) for parts in zip(*stored, strict=True))
            if weights is None:
                weights = ExpertWeights.empty(len(experts), codes.shape[0], 2 * codes.shape[1], self._device)
            weights.store(number, codes, scales)
        assert weights is not None, "a config has at least one expert"
        return weights

    def table(self, module: str) -> StoredTable:
        """An Engram table: E4M3 rows with a scale per 32 columns."""
        codes, scales = self._source.quantized(module)
        return StoredTable(codes.to(self._device).contiguous(), scales.to(self._device).contiguous())

    def moved(self, tensor: torch.Tensor) -> torch.Tensor:
        """A tensor of the host's on the device."""
        return tensor.to(self._device)
