"""Window keys of the draft layers for tokens that the target model has processed."""

from __future__ import annotations

import torch

from thalweg.model.config import ModelConfig
from thalweg.model.numerics import Numerics
from thalweg.model.rope import Rotary
from thalweg.model.weights import Weights


class MainKeys:
    """From target features to one key per draft layer: all of the drafter that a prefill runs."""

    def __init__(self, config: ModelConfig, weights: Weights, numerics: Numerics) -> None:
        blocks = [f"mtp.{number}.attn." for number in range(config.num_draft_layers)]
        self._projection = weights.fp8("mtp.0.main_proj")
        self._norm = weights.plain("mtp.0.main_norm.weight")
        self._keys = weights.fp8(*(f"{block}wkv" for block in blocks))
        self._key_norms = [weights.plain(f"{block}kv_norm.weight") for block in blocks]
        self._norm_eps = config.rms_norm_eps
        self._numerics = numerics

    def __call__(self, features: torch.Tensor, rotary: Rotary) -> torch.Tensor:
        """Rotated keys [T, B, D] of B draft layers for features [T, L * h] of rows at the positions of `rotary`."""
        n, ops = self._numerics, self._numerics.ops
        main = n.bf16(ops.rms_norm(n.linear(n.mxfp8(features), self._projection), self._norm, self._norm_eps))
        keys = n.linear(n.mxfp8(main), self._keys).chunk(len(self._key_norms), dim=-1)
        normed = [ops.rms_norm(rows, norm, self._norm_eps) for rows, norm in zip(keys, self._key_norms, strict=True)]
        return rotary.rotate(n.bf16(torch.stack(normed, dim=1)))
