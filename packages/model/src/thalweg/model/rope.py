"""Rotary tables of one forward pass: two frequency sets, computed once each for every set of positions."""

from __future__ import annotations

from dataclasses import dataclass

import torch

from thalweg.kernels import YarnScaling
from thalweg.model.config import ModelConfig
from thalweg.model.numerics import Numerics


@dataclass(frozen=True, slots=True)
class Rotary:
    """Cosine and sine of n positions, [n, rope dim / 2], fp32 values in the carrier dtype."""

    cos: torch.Tensor
    sin: torch.Tensor
    numerics: Numerics

    def rotate(self, x: torch.Tensor) -> torch.Tensor:
        """x [n, D] or [n, H, D] with its last columns rotated."""
        return self.numerics.bf16(self.numerics.ops.apply_rope(x, self.cos, self.sin))

    def rotate_back(self, x: torch.Tensor) -> torch.Tensor:
        """The inverse of `rotate`."""
        return self.numerics.bf16(self.numerics.ops.apply_rope(x, self.cos, self.sin, inverse=True))


class RotaryTables:
    """Tables by layer kind: layers without a compressed stream use the plain base, all others their own with YaRN."""

    def __init__(self, config: ModelConfig, numerics: Numerics) -> None:
        self._numerics = numerics
        frequencies = numerics.ops.inverse_frequencies
        yarn = None
        if config.rope_scaling is not None:
            scaling = config.rope_scaling
            yarn = YarnScaling(
                factor=scaling.factor,
                beta_fast=scaling.beta_fast,
                beta_slow=scaling.beta_slow,
                original_positions=scaling.original_max_position_embeddings,
            )
        self._window = frequencies(config.qk_rope_head_dim, config.rope_theta, None)
        self._compressed = frequencies(config.qk_rope_head_dim, config.compress_rope_theta, yarn)

    def at(self, positions: torch.Tensor, ratio: int) -> Rotary:
        """The table of these positions [n] for layers of this compress ratio."""
        n = self._numerics
        cos, sin = n.ops.rope_table(positions, self._compressed if ratio else self._window)
        return Rotary(cos.to(n.dtype), sin.to(n.dtype), n)
