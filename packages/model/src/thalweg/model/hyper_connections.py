"""Shifted manifold-constrained hyper-connections: the residual trunk of m streams around every sub-layer.

A sub-layer reads a mix of the streams whose weights the *previous* sub-layer computed, and its output is spread over
the streams together with a doubly stochastic mix of the old ones.
"""

from __future__ import annotations

from dataclasses import dataclass

import torch

from thalweg.model.numerics import Numerics


@dataclass(frozen=True, slots=True)
class StreamMix:
    """Coefficients that one sub-layer computes from the trunk; n rows, m streams."""

    next_read: torch.Tensor
    """[n, m] weights with which the next sub-layer reads the trunk."""
    write: torch.Tensor
    """[n, m] weight of the sub-layer's output in each stream."""
    carry: torch.Tensor
    """[n, m, m] how much of stream j (first) goes on in stream k (second)."""


class HyperConnection:
    """The trunk arithmetic of one sub-layer."""

    def __init__(
        self,
        fn: torch.Tensor,
        scale: torch.Tensor,
        base: torch.Tensor,
        *,
        norm_eps: float,
        mix_eps: float,
        iterations: int,
        numerics: Numerics,
    ) -> None:
        """fn: [(2+m)m, m*h]; scale: [3]; base: [(2+m)m]."""
        self._fn = fn
        self._scale = scale
        self._base = base
        self._norm_eps = norm_eps
        self._mix_eps = mix_eps
        self._iterations = iterations
        self._numerics = numerics

    def mix(self, trunk: torch.Tensor) -> StreamMix:
        """trunk: [n, m, h]."""
        n, streams = self._numerics, trunk.shape[1]
        z = n.f32(n.ops.hc_mixes(trunk, self._fn, self._norm_eps))
        read, write, carry = n.ops.hc_coefficients(z, self._scale, self._base, streams, self._iterations, self._mix_eps)
        return StreamMix(n.f32(read), n.f32(write), n.f32(carry))

    def expand(self, trunk: torch.Tensor, output: torch.Tensor, mix: StreamMix) -> torch.Tensor:
        """The trunk [n, m, h] after a sub-layer whose output is [n, h]."""
        n = self._numerics
        return n.bf16(n.ops.hc_expand(trunk, output, mix.write, mix.carry))


def collapse(trunk: torch.Tensor, read: torch.Tensor, numerics: Numerics) -> torch.Tensor:
    """One row per token, [n, h]: the trunk [n, m, h] read with weights [n, m]."""
    return numerics.bf16(numerics.ops.hc_collapse(trunk, read))


def start_trunk(rows: torch.Tensor, streams: int) -> tuple[torch.Tensor, torch.Tensor]:
    """The trunk and reading weights before the first layer: rows [n, h] in every stream, stream 0 read alone."""
    trunk = rows[:, None, :].expand(-1, streams, -1).contiguous()
    read = torch.zeros(rows.shape[0], streams, dtype=rows.dtype, device=rows.device)
    read[:, 0] = 1.0
    return trunk, read
