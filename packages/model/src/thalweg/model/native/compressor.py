"""The compressor of a KV-source layer: hidden rows become entries of a compressed key stream."""

from __future__ import annotations

from dataclasses import dataclass

import torch

from thalweg.model.native.memory import KeyNorm
from thalweg.model.native.state import NativeState


@dataclass(frozen=True, slots=True)
class Compressor:
    """Writes the main keys of its layer's stream; E = entries that a pass completes."""

    layer: int
    ratio: int
    projection: torch.Tensor
    """bfloat16 [D, h] for ratio 1, else [2D, h] with the gate rows (scores) first."""
    norm: KeyNorm

    def write(self, rows: torch.Tensor, state: NativeState) -> None:
        """Add this pass's entries to the stream and leave their latents in `state`; rows: bfloat16 [T, h]."""
        ops = state.ops
        if self.ratio == 1:
            pooled = ops.bf16_linear(rows, self.projection, torch.bfloat16)
        else:
            score, latent = ops.bf16_linear(rows, self.projection, torch.float32).chunk(2, dim=-1)
            pooled = state.memory.pool(self.layer, score, latent).bfloat16()
        state.latents = state.memory.write_main(self.layer, pooled, self.norm, state.entry_rotary(self.ratio))
