"""One layer: Engram where there is one, then attention and experts, each inside a hyper-connection."""

from __future__ import annotations

import torch

from thalweg.model.attention import Attention
from thalweg.model.engram import Engram
from thalweg.model.forward_state import ForwardState
from thalweg.model.hyper_connections import HyperConnection, collapse
from thalweg.model.moe import MixtureOfExperts
from thalweg.model.numerics import Numerics


class Layer:
    """Takes the trunk and the weights with which to read it, gives back both for the next layer."""

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
        *,
        norm_eps: float,
        numerics: Numerics,
        starts_consumers: bool = False,
    ) -> None:
        """starts_consumers: whether it is the first layer that bounded replay runs over fewer rows."""
        self.index = index
        self._starts_consumers = starts_consumers
        self._engram = engram
        self._attention_connection = attention_connection
        self._attention_norm = attention_norm
        self._attention = attention
        self._experts_connection = experts_connection
        self._experts_norm = experts_norm
        self._experts = experts
        self._norm_eps = norm_eps
        self._numerics = numerics

    def __call__(
        self, trunk: torch.Tensor, read: torch.Tensor, state: ForwardState
    ) -> tuple[torch.Tensor, torch.Tensor]:
        """trunk: [T, m, h]; read: [T, m]."""
        if self._engram is not None:
            trunk = self._engram(trunk, state.batch, state.trace)
        if state.features is not None:
            state.features.take(self.index, trunk, self._numerics)

        hidden = self._normed(collapse(trunk, read, self._numerics), self._attention_norm)
        self._attention.write_streams(hidden, state)
        if self._starts_consumers:
            trunk, hidden = state.enter_consumers(trunk, hidden) or (trunk, hidden)
        mix = self._attention_connection.mix(trunk)
        attended = self._attention(hidden, state)
        trunk, read = self._attention_connection.expand(trunk, attended, mix), mix.next_read

        hidden = self._normed(collapse(trunk, read, self._numerics), self._experts_norm)
        mix = self._experts_connection.mix(trunk)
        output = self._experts(hidden, state.batch, state.trace)
        trunk, read = self._experts_connection.expand(trunk, output, mix), mix.next_read

        if state.trace is not None:
            for name, value in (("attn_out", attended), ("ffn_out", output), ("trunk", trunk), ("pre", read)):
                state.trace.record(name, self.index, value)
        return trunk, read

    def _normed(self, rows: torch.Tensor, weight: torch.Tensor) -> torch.Tensor:
        return self._numerics.bf16(self._numerics.ops.rms_norm(rows, weight, self._norm_eps))
