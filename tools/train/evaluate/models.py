"""Checkpoints and master weights as models on one device, with ops replaced where a measure asks for it."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field, replace
from pathlib import Path

import torch
from tools.train.common.resume import load_resume_point
from tools.train.evaluate.ops import Op, bind_with
from torch import Tensor

from thalweg.interfaces import CheckpointError
from thalweg.model import Checkpoint, EngramVocabulary, Model, ModelConfig, Numerics
from thalweg.model.weights import TensorSource, Weights


class OnDevice:
    """A source whose tensors lie on a device."""

    def __init__(self, source: TensorSource, device: torch.device) -> None:
        self._source = source
        self._device = device

    def tensor(self, name: str) -> Tensor:
        """As of the source."""
        return self._source.tensor(name).to(self._device)

    def quantized(self, prefix: str) -> tuple[Tensor, Tensor]:
        """As of the source."""
        codes, scales = self._source.quantized(prefix)
        return codes.to(self._device), scales.to(self._device)


class Masters:
    """The weights of a resume point as a source; where a checkpoint has codes it has values, and no scales."""

    def __init__(self, directory: Path) -> None:
        self._directory = directory
        self._tensors, _ = load_resume_point(directory)

    def tensor(self, name: str) -> Tensor:
        """Raises CheckpointError for a name that the resume point lacks."""
        if name not in self._tensors:
            raise CheckpointError(f"{self._directory}: has no {name}; a resume point of this backbone is needed")
        return self._tensors[name]

    def quantized(self, prefix: str) -> tuple[Tensor, Tensor]:
        """The values, and nothing."""
        values = self.tensor(f"{prefix}.weight")
        return values, values.new_empty(0)


def _values(values: Tensor, scales: Tensor, dtype: torch.dtype) -> Tensor:
    """Every op that turns codes into values, for values."""
    return values.to(dtype)


_VALUES_FOR_CODES = dict.fromkeys(("dequantize_fp8_weight", "dequantize_mxfp4", "dequantize_mxfp8"), _values)


@dataclass(frozen=True, slots=True)
class Subject:
    """What is evaluated: weights of which models are made, one for each way of running them."""

    config: ModelConfig
    source: TensorSource
    vocabulary: EngramVocabulary | None
    device: torch.device
    replaced: Mapping[str, Op] = field(default_factory=dict)
    """Ops of all its models."""

    @classmethod
    def open(cls, path: str | Path, device: torch.device | str) -> Subject:
        """A checkpoint directory. Raises ConfigError and CheckpointError as the strict loader does."""
        place = torch.device(device)
        checkpoint = Checkpoint.open(path, strict=True)
        config = checkpoint.config
        vocabulary = EngramVocabulary.from_checkpoint(path, config) if config.engram_layer_ids else None
        return cls(config, OnDevice(checkpoint, place), vocabulary, place)

    def with_masters(self, directory: Path) -> Subject:
        """The same model with the weights of a resume point, as they were before they were stored."""
        return replace(self, source=OnDevice(Masters(directory), self.device), replaced=_VALUES_FOR_CODES)

    def model(
        self, mode: str = "plain", replaced: Mapping[str, Op] | None = None, arithmetic: str = "float32"
    ) -> Model:
        """The model with some ops replaced by name."""
        numerics = Numerics(mode, arithmetic, bind_with({**self.replaced, **(replaced or {})}))
        with self.device:  # the rotary frequencies are made when the model is
            return Model(self.config, Weights(self.source, numerics), numerics, self.vocabulary)
