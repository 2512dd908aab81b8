"""One layer: Engram where there is one, then attention and experts, each inside a hyper-connection."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

import torch

from thalweg.kernels import HcMix
from thalweg.model.config import ModelConfig
from thalweg.model.native.attention import Attention
from thalweg.model.native.engram import Engram
from thalweg.model.native.moe import MixtureOfExperts
from thalweg.model.native.state import NativeState, Residual


@dataclass(frozen=True, slots=True)
class HyperConnection:
    """The trunk arithmetic of one sub-layer: m streams of h columns."""

    fn: torch.Tensor
    """float32 [(2+m)m, m*h]"""
    scale: torch.Tensor
    """float32 [3]"""
    base: torch.Tensor
    """float32 [(2+m)m]"""
    norm_eps: float
    mix_eps: float
    iterations: int

    def mix(self, trunk: torch.Tensor, state: NativeState) -> HcMix:
        """The coefficients that the sub-layer computes from the trunk [n, m, h]."""
        mix: HcMix = state.ops.hc_mix(
            trunk, self.fn, self.scale, self.base, self.norm_eps, self.mix_eps, self.iterations
        )
        return mix


class Layer:
    """Takes the residual as its own attention reads it, gives it back as the attention of the next layer does."""

    def __init__(
        self,
        index: int,
        engram: Engram | None,
        attention_connection: HyperConnection,
        attention_norm: torch.Tensor,
        attention: Attention,
        experts_connection: HyperConnection,
        experts_norm: torch.Tensor,
        experts: MixtureOfExperts,
        next_norm: torch.Tensor,
        *,
        norm_eps: float,
        starts_consumers: bool = False,
    ) -> None:
        """next_norm: [h], of the sub-layer (or head) that follows.

        starts_consumers: whether it is the first layer that bounded replay runs over fewer rows.
        """
        self._starts_consumers = starts_consumers
        self.index = index
        self._engram = engram
        self._attention_connection = attention_connection
        self.attention_norm = attention_norm
        """[h]: with it the residual is to be normed that comes in."""
        self._attention = attention
        self._experts_connection = experts_connection
        self._experts_norm = experts_norm
        self._experts = experts
        self._next_norm = next_norm
        self._norm_eps = norm_eps

    def __call__(self, residual: Residual, state: NativeState) -> Residual:
        if self._engram is not None:
            residual = self._with_engram(self._engram, residual, state)
        if state.features is not None and self.index in state.features.layer_ids:
            state.features.put(self.index, state.ops.target_feature(residual.trunk))
        self._attention.write_streams(residual.rows, state)
        if self._starts_consumers:
            residual = self._of_consumers(residual, state)
        mix = self._attention_connection.mix(residual.trunk, state)
        attended = self._attention(residual.rows, state)
        residual = self._advance(residual.trunk, attended, mix, self._experts_norm, state)

        mix = self._experts_connection.mix(residual.trunk, state)
        output = self._experts(residual.rows, state)
        residual = self._advance(residual.trunk, output, mix, self._next_norm, state)
        for name, value in (
            ("attn_out", attended),
            ("ffn_out", output),
            ("trunk", residual.trunk),
            ("pre", residual.read),
        ):
            state.record(name, self.index, value)
        return residual

    def _with_engram(self, engram: Engram, residual: Residual, state: NativeState) -> Residual:
        """The trunk with the table's values, read anew: what the layer before has read of it is out of date."""
        trunk = engram(residual.trunk, state)
        rows = state.ops.hc_read(trunk, residual.read, self.attention_norm, self._norm_eps)
        return Residual(trunk, residual.read, rows)

    def _of_consumers(self, residual: Residual, state: NativeState) -> Residual:
        """The rows that go on, read anew."""
        kept = state.enter_consumers(residual.trunk, residual.read)
        if kept is None:
            return residual
        return Residual(*kept, state.ops.hc_read(*kept, self.attention_norm, self._norm_eps))

    def _advance(
        self, trunk: torch.Tensor, output: torch.Tensor, mix: HcMix, norm: torch.Tensor, state: NativeState
    ) -> Residual:
        trunk, rows = state.ops.hc_advance(trunk, output, mix, norm, self._norm_eps)
        return Residual(trunk, mix.next_read, rows)


def run_layers(layers: Sequence[Layer], rows: torch.Tensor, config: ModelConfig, state: NativeState) -> Residual:
    """The residual behind the last layer, for rows bfloat16 [T, h] that every stream starts with."""
    trunk, read = _start(rows, config.hc_mult)
    normed = state.ops.hc_read(trunk, read, layers[0].attention_norm, config.rms_norm_eps)
    residual = Residual(trunk, read, normed)
    for layer in layers:
        residual = layer(residual, state)
    return residual


def _start(rows: torch.Tensor, streams: int) -> tuple[torch.Tensor, torch.Tensor]:
    """The trunk and reading weights before the first layer: stream 0 is read alone."""
    trunk = rows[:, None, :].expand(-1, streams, -1).contiguous()
    read = torch.zeros(rows.shape[0], streams, dtype=torch.float32, device=rows.device)
    read[:, 0].fill_(1.0)
    return trunk, read
