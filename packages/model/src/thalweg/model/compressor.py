"""The compressor of a KV-source layer: hidden rows become entries of a compressed key stream."""

from __future__ import annotations

import torch

from thalweg.model.forward_state import ForwardState
from thalweg.model.numerics import Numerics


class Compressor:
    """Writes the main keys of its layer's stream; E = entries that this pass completes."""

    def __init__(
        self,
        layer: int,
        ratio: int,
        projection: torch.Tensor,
        norm: torch.Tensor,
        *,
        norm_eps: float,
        numerics: Numerics,
    ) -> None:
        """projection: [D, h] for ratio 1, else [2D, h] with the gate rows (scores) first; norm: [D]."""
        self._layer = layer
        self._ratio = ratio
        self._projection = projection
        self._norm = norm
        self._norm_eps = norm_eps
        self._numerics = numerics

    def write(self, hidden: torch.Tensor, state: ForwardState) -> None:
        """Add this pass's entries to the stream and leave their latents in `state`; hidden: [T, h] normed rows."""
        n, ops = self._numerics, self._numerics.ops
        if self._ratio == 1:
            pooled = n.linear(hidden, self._projection)
        else:
            # The pooling state is single precision, so rows are rounded before any pooling, not after.
            score, latent = n.f32(ops.matmul(hidden, self._projection)).chunk(2, dim=-1)
            pooled = n.bf16(state.memory.pool(self._layer, score, latent))
        latents = n.bf16(ops.rms_norm(pooled, self._norm, self._norm_eps))
        state.memory.append_main(self._layer, state.entry_rotary(self._ratio).rotate(latents))
        state.latents = latents
