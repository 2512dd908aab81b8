"""Random weights that are made where they are needed: real dimensions on a device, without a file and without the host.

Stored tensors have the right formats and sizes that keep activations near 1. Codes are drawn as codes, not quantised:
what a kernel reads has as many different bytes as trained weights have, and tens of gigabytes take seconds.
"""

from __future__ import annotations

import math

import numpy as np
import torch

from thalweg.interfaces import ConfigError
from thalweg.kernels import BoundOps
from thalweg.model.config import ModelConfig
from thalweg.model.engram_vocabulary import EngramVocabulary
from thalweg.model.names import TensorSpec, scale_name, tensor_specs
from thalweg.model.native.backbone import NativeModel
from thalweg.model.random_values import random_values, tensor_seed

_STORED = {"BF16": torch.bfloat16, "F32": torch.float32}
_NIBBLE_SIZE = 3.0
"""Root mean square of an e2m1 value whose four bits are random."""
_SCALE_BIAS = 127


class DummyTensors:
    """A source of stored tensors; a tensor's values depend on seed, name and device alone."""

    def __init__(self, config: ModelConfig, device: torch.device | str, seed: int = 0) -> None:
        self._specs = {spec.name: spec for spec in tensor_specs(config)}
        self._device = torch.device(device)
        self._seed = seed

    def tensor(self, name: str) -> torch.Tensor:
        """A BF16 or F32 tensor. Raises ConfigError for a name that a checkpoint of the config does not have."""
        spec = self._spec(name)
        if spec.dtype not in _STORED:
            raise ConfigError(
                f"{name}: dtype is {spec.dtype}; {' and '.join(_STORED)} are made here, codes by quantized"
            )
        return random_values(spec, self._generator(name)).to(_STORED[spec.dtype])

    def quantized(self, prefix: str) -> tuple[torch.Tensor, torch.Tensor]:
        """Codes and scales, uint8, of `<prefix>.weight` and `<prefix>.scale`."""
        weight = self._spec(f"{prefix}.weight")
        scale = self._spec(scale_name(weight.name))
        generator = self._generator(weight.name)
        if weight.format == "fp4":
            codes = torch.randint(0, 256, weight.shape, dtype=torch.uint8, generator=generator, device=self._device)
            size = 1 / math.sqrt(2 * weight.shape[1]) / _NIBBLE_SIZE
        else:
            codes = self._e4m3(weight.shape, generator)
            size = 0.3 if weight.format == "engram" else 1 / math.sqrt(weight.shape[1])
        exponent = _SCALE_BIAS + round(math.log2(size))
        scales = torch.randint(
            exponent - 1, exponent + 1, scale.shape, dtype=torch.uint8, generator=generator, device=self._device
        )
        return codes, scales

    def _e4m3(self, shape: tuple[int, ...], generator: torch.Generator) -> torch.Tensor:
        """Codes of normal values."""
        codes = torch.empty(shape, dtype=torch.uint8, device=self._device)
        # In parts: as float32 an Engram table would take four times its size.
        for part in torch.split(codes, max(1, (1 << 26) // shape[-1])):
            noise = torch.randn(part.shape, generator=generator, device=self._device)
            part.copy_(noise.to(torch.float8_e4m3fn).view(torch.uint8))
        return codes

    def _spec(self, name: str) -> TensorSpec:
        if name not in self._specs:
            raise ConfigError(f"name is {name!r}; a checkpoint of this config has no such tensor")
        return self._specs[name]

    def _generator(self, name: str) -> torch.Generator:
        return torch.Generator(self._device).manual_seed(tensor_seed(self._seed, name))


def dummy_vocabulary(config: ModelConfig) -> EngramVocabulary | None:
    """Compressed ids that need no tokenizer: every token its own, up to the config's number of them."""
    if not config.engram_layer_ids:
        return None
    size = min(config.engram_compressed_vocab_size or config.vocab_size, config.vocab_size)
    ids = np.arange(config.vocab_size, dtype=np.int64) % size
    return EngramVocabulary(ids, size, int(ids[config.engram_pad_token_id]))


def dummy_model(
    config: ModelConfig,
    ops: BoundOps,
    device: torch.device | str,
    *,
    seed: int = 0,
    num_positions: int | None = None,
) -> NativeModel:
    """A model of random weights on a device, for measuring; arguments as of `NativeModel`."""
    source = DummyTensors(config, device, seed)
    return NativeModel(config, source, ops, dummy_vocabulary(config), device=device, num_positions=num_positions)
