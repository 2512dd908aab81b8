"""The draft layers as masters: float32 values by checkpoint name, and what a network has of them."""

from __future__ import annotations

import math
from collections.abc import Iterator, Mapping

import torch
from tools.train.common.optimiser import Piece, Rule
from torch import Tensor

from thalweg.model import ModelConfig, TensorSpec, tensor_specs

_FP4_PER_BYTE = 2
_BIASES = (".bias", ".bias_vl")
_ZERO_AT_FIRST = ("wo_b.weight", "w2.weight", "markov_head.head.weight", "confidence_head.proj.weight")
"""What adds to a sum: at first a draft layer changes nothing and the heads have no opinion."""
_ADAM = ("gate.weight", "markov_head.embed.weight", "markov_head.head.weight", "confidence_head.proj.weight", "_fn")
"""Matrices whose rows stand for tokens, experts and coefficients: each has a scale of its own."""


def draft_specs(config: ModelConfig) -> dict[str, TensorSpec]:
    """The draft tensors of a checkpoint by name, without their scales."""
    return {spec.name: spec for spec in tensor_specs(config) if spec.module == "draft" and not spec.is_scale}


def value_shape(spec: TensorSpec) -> tuple[int, ...]:
    """Shape of the values: FP4 is stored two to a byte."""
    if spec.format != "fp4":
        return spec.shape
    rows, columns = spec.shape
    return rows, columns * _FP4_PER_BYTE


def initial_masters(config: ModelConfig, seed: int) -> dict[str, Tensor]:
    """Where training begins, float32 on the host; small_model.md 4."""
    generator = torch.Generator().manual_seed(seed)
    streams = config.hc_mult
    return {name: _initial(spec, streams, generator) for name, spec in draft_specs(config).items()}


def _initial(spec: TensorSpec, streams: int, generator: torch.Generator) -> Tensor:
    shape, name = value_shape(spec), spec.name
    noise = torch.randn(shape, generator=generator)
    if name.endswith("norm.weight"):
        return torch.ones(shape)
    if name.endswith("_fn"):
        return 0.02 * noise
    if name.endswith("_scale"):
        return torch.full(shape, 0.1)
    if name.endswith("_base"):
        # Streams are read evenly and kept apart; the noise breaks their symmetry.
        even = torch.cat([torch.full((streams,), -1.1), torch.zeros(streams), 3 * torch.eye(streams).flatten()])
        return even + 0.3 * noise
    if name.endswith(_ZERO_AT_FIRST) or len(shape) == 1:
        return torch.zeros(shape)
    if name.endswith("markov_head.embed.weight"):
        return 0.3 * noise
    return noise / math.sqrt(shape[-1])


class MasterSource:
    """A `TensorSource` of masters: what the training ops take for codes are the values."""

    def __init__(self, masters: Mapping[str, Tensor], device: torch.device) -> None:
        self._masters = masters
        self._device = device

    def tensor(self, name: str) -> Tensor:
        """The values of a BF16 or F32 tensor."""
        return self._masters[name].to(self._device)

    def quantized(self, prefix: str) -> tuple[Tensor, Tensor]:
        """The values of a quantised matrix, and nothing for its scales."""
        values = self._masters[f"{prefix}.weight"].to(self._device)
        return values, values.new_empty(0)


def pieces(config: ModelConfig, parameters: Mapping[str, Tensor]) -> Iterator[Piece]:
    """What is optimised of a network's working tensors; selection biases, which follow the load, are not.

    A matrix that the network cuts into blocks is one piece per block, called `<matrix>.<number>.weight`.
    """
    specs = draft_specs(config)
    for joined, leaf in parameters.items():
        first_row = 0
        for part in joined.split("+"):
            name = part if part in specs else f"{part}.weight"
            spec = specs.get(name) or specs[f"{part.rpartition('.')[0]}.weight"]
            num_rows = leaf.shape[0] if name not in specs else spec.shape[0]
            if not name.endswith(_BIASES):
                rule: Rule = "muon" if len(spec.shape) == 2 and not name.endswith(_ADAM) else "adam"
                yield Piece(name, leaf, first_row, num_rows, spec.format, rule)
            first_row += num_rows


def whole_masters(
    config: ModelConfig, masters: Mapping[str, Tensor], parameters: Mapping[str, Tensor]
) -> dict[str, Tensor]:
    """Every draft tensor by checkpoint name: masters of the pieces, their blocks joined again, and selection biases."""
    return {name: _whole(name, masters, parameters).detach() for name in draft_specs(config)}


def _whole(name: str, masters: Mapping[str, Tensor], parameters: Mapping[str, Tensor]) -> Tensor:
    if name.endswith(_BIASES):
        return parameters[name.removesuffix("_vl")].clone()  # images are routed as text is
    if name in masters:
        return masters[name]
    module = name.removesuffix(".weight")
    blocks: list[Tensor] = []
    while (block := f"{module}.{len(blocks)}.weight") in masters:
        blocks.append(masters[block])
    return torch.cat(blocks)
