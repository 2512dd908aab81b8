"""Values of random checkpoints: sizes that keep every activation near 1 and every branch alive."""

from __future__ import annotations

import math
import zlib

import torch

from thalweg.model.names import TensorSpec


def tensor_seed(seed: int, name: str) -> int:
    """What to seed a tensor's generator with: one hash of both, as a generator reads only the low 32 bits."""
    return zlib.crc32(f"{seed} {name}".encode())


def random_values(spec: TensorSpec, generator: torch.Generator) -> torch.Tensor:
    """float32 values before storage, on the generator's device."""
    shape = (spec.shape[0], 2 * spec.shape[1]) if spec.format == "fp4" else spec.shape
    noise = torch.randn(shape, generator=generator, device=generator.device)
    leaf = spec.name.rsplit(".", 2)[-2 if spec.name.endswith(".weight") else -1]
    if leaf.endswith("norm") or leaf in ("q_weight", "k_weight", "norm1", "norm2"):
        return 1 + 0.1 * noise
    if leaf.startswith("hc_"):
        return _mix_values(leaf, noise)
    if leaf == "attn_sink":
        return 0.5 * noise
    if leaf in ("bias", "bias_vl"):
        return 0.05 * noise
    if leaf == "embed":
        return (0.3 if spec.format == "engram" else 1.0) * noise
    if len(shape) == 1:
        return noise
    return noise * ((2.0 if leaf == "head" else 1.0) / math.sqrt(shape[-1]))


def _mix_values(leaf: str, noise: torch.Tensor) -> torch.Tensor:
    """Hyper-connections that mostly keep each stream and read them evenly; the noise breaks their symmetry."""
    if leaf.endswith("_fn"):
        return noise / math.sqrt(noise.shape[-1])
    if leaf.endswith("_scale"):
        return 0.5 + 0.05 * noise
    mixes = noise.shape[0]
    streams = next(m for m in range(1, mixes + 1) if (2 + m) * m == mixes)
    base = torch.cat([torch.full((streams,), -1.1), torch.zeros(streams), 3 * torch.eye(streams).flatten()])
    return base.to(noise.device) + 0.3 * noise
