"""Values that training starts from; small_model.md 4."""

from __future__ import annotations

from collections.abc import Iterable

import torch
from torch import Tensor

from thalweg.model.names import TensorSpec
from thalweg.model.random_values import tensor_seed

_ONES = ("norm", "q_weight", "k_weight")
_ZEROS = ("bias", "bias_vl", "attn_sink", "image_start", "image_end", "image_newline")
_START_AT_ZERO = ("wo_b", "w2")
"""What a sub-layer ends with: at first it adds nothing to the trunk."""
_SPREADS = {"head": 0.02, "embed": 0.3}
_CARRY_DIAGONAL = 3.0
_READ_BASE = -1.1
_BASE_NOISE = 0.3
_MIX_SCALE = 0.1
_MIX_SPREAD = 0.02


def initial_masters(specs: Iterable[TensorSpec], streams: int, seed: int) -> dict[str, Tensor]:
    """float32 by checkpoint name, for all tensors but scales. A tensor's values depend on seed and name alone."""
    return {
        spec.name: _value(spec, streams, torch.Generator().manual_seed(tensor_seed(seed, spec.name)))
        for spec in specs
        if not spec.is_scale
    }


def _value(spec: TensorSpec, streams: int, generator: torch.Generator) -> Tensor:
    shape = (spec.shape[0], 2 * spec.shape[1]) if spec.format == "fp4" else spec.shape
    leaf = spec.name.removesuffix(".weight").rsplit(".", 1)[-1]
    if leaf.endswith(_ONES):
        return torch.ones(shape)
    if leaf in _ZEROS or leaf in _START_AT_ZERO:
        return torch.zeros(shape)
    noise = torch.randn(shape, generator=generator)
    if leaf.startswith("hc_"):
        return _mix(leaf, noise, streams)
    value: Tensor = noise * _SPREADS.get(leaf, shape[-1] ** -0.5)
    if spec.name.endswith("engram.wkv.weight"):
        value[-(shape[0] // (streams + 1)) :] = 0  # the value rows: the table is read once its keys mean something
    return value


def _mix(leaf: str, noise: Tensor, streams: int) -> Tensor:
    """Streams go on mostly as they are and are read evenly; the noise breaks their symmetry."""
    if leaf.endswith("_fn"):
        return _MIX_SPREAD * noise
    if leaf.endswith("_scale"):
        return torch.full_like(noise, _MIX_SCALE)
    carry = _CARRY_DIAGONAL * torch.eye(streams).flatten()
    base = torch.cat([torch.full((streams,), _READ_BASE), torch.zeros(streams), carry])
    return base + _BASE_NOISE * noise
