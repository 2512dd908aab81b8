"""Window keys of the draft layers for tokens that the target model has processed."""

from __future__ import annotations

import torch

from thalweg.interfaces import CacheViews
from thalweg.kernels import BoundOps, Mxfp8Rows, RecordFormat
from thalweg.model.config import ModelConfig
from thalweg.model.native.rope import RotaryRows
from thalweg.model.native.weights import DeviceWeights


class MainKeys:
    """From target features to one stored key per draft layer: all of the drafter that a prefill runs."""

    def __init__(self, config: ModelConfig, weights: DeviceWeights, ops: BoundOps) -> None:
        blocks = [f"mtp.{number}.attn." for number in range(config.num_draft_layers)]
        self._projection = weights.fp8("mtp.0.main_proj")
        self._norm = weights.plain("mtp.0.main_norm.weight")
        self._keys = weights.fp8(*(f"{block}wkv" for block in blocks))
        self._key_norms = [weights.plain(f"{block}kv_norm.weight") for block in blocks]
        self._first_layer = config.num_hidden_layers
        self._norm_eps = config.rms_norm_eps
        self._ops = ops

    def write(self, features: torch.Tensor, rotary: RotaryRows, views: CacheViews, slots: torch.Tensor) -> None:
        """Store keys for features bfloat16 [T, L * h] of rows at the positions of `rotary`; slots: int [T]."""
        ops = self._ops
        main = ops.fp8_linear(Mxfp8Rows(*ops.quantize_mxfp8(features)), self._projection)
        keys = ops.fp8_linear(ops.norm_quantize(main, self._norm, self._norm_eps), self._keys)
        parts = keys.chunk(len(self._key_norms), dim=-1)
        for layer, (rows, norm) in enumerate(zip(parts, self._key_norms, strict=True), self._first_layer):
            ops.norm_rope_store(
                rows, norm, self._norm_eps, rotary.cos, rotary.sin, views.window(layer), slots, RecordFormat.MXFP8
            )
