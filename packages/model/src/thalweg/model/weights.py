"""Checkpoint tensors as the forward pass wants them: de-quantised once, matrices of one input joined."""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from typing import Protocol

import torch

from thalweg.model.names import scale_name
from thalweg.model.numerics import Numerics


class TensorSource(Protocol):
    """Stored tensors by checkpoint name; an open `Checkpoint` is one."""

    def tensor(self, name: str) -> torch.Tensor:
        """A BF16 or F32 tensor."""

    def quantized(self, prefix: str) -> tuple[torch.Tensor, torch.Tensor]:
        """Codes and scales, uint8, of `<prefix>.weight` and `<prefix>.scale`."""


class Weights:
    """Reads stored tensors by checkpoint name and keeps what it made of them by parameter name.

    Parameter names are checkpoint names; a matrix joined from several has their names joined with `+`.
    """

    def __init__(self, source: TensorSource, numerics: Numerics, *, trainable: bool = False) -> None:
        """trainable: parameters collect gradients."""
        self._source = source
        self._numerics = numerics
        self._trainable = trainable
        self.parameters: dict[str, torch.Tensor] = {}

    def plain(self, *names: str) -> torch.Tensor:
        """BF16 or F32 tensors, stacked along the first axis."""
        return self._keep(names, [self._source.tensor(name) for name in names])

    def fp8(self, *modules: str) -> torch.Tensor:
        """FP8 linears (names without `.weight`) of one input, stacked along the output axis: [sum of o, i]."""
        return self._keep(modules, [self._fp8(module) for module in modules])

    def fp4(self, *modules: str) -> torch.Tensor:
        """FP4 experts' matrices of one input, stacked along the output axis."""
        ops, dtype = self._numerics.ops, self._numerics.dtype
        pieces = [ops.dequantize_mxfp4(*self._source.quantized(module), dtype) for module in modules]
        return self._keep(modules, pieces)

    def fp8_blocks(self, module: str, count: int) -> Sequence[torch.Tensor]:
        """An FP8 linear cut into `count` equal blocks of output rows."""
        blocks = self._fp8(module).chunk(count)
        return tuple(self._keep((f"{module}.{index}",), [block.clone()]) for index, block in enumerate(blocks))

    def engram_table(self, module: str) -> torch.Tensor:
        """An Engram table: E4M3 rows with a scale per 32 columns."""
        ops, dtype = self._numerics.ops, self._numerics.dtype
        return self._keep((module,), [ops.dequantize_mxfp8(*self._source.quantized(module), dtype)])

    def _fp8(self, module: str) -> torch.Tensor:
        weight: torch.Tensor = self._numerics.ops.dequantize_fp8_weight(
            *self._source.quantized(module), self._numerics.dtype
        )
        return weight

    def _keep(self, names: tuple[str, ...], pieces: list[torch.Tensor]) -> torch.Tensor:
        joined = pieces[0] if len(pieces) == 1 else torch.cat(pieces)
        tensor = joined.to(self._numerics.dtype).contiguous()
        if self._trainable:
            tensor = tensor.detach().requires_grad_()
        self.parameters["+".join(names)] = tensor
        return tensor


class TrackedSource:
    """A source that remembers which tensors were read from it."""

    def __init__(self, source: TensorSource) -> None:
        self._source = source
        self._read: set[str] = set()

    def tensor(self, name: str) -> torch.Tensor:
        """As of the source."""
        self._read.add(name)
        return self._source.tensor(name)

    def quantized(self, prefix: str) -> tuple[torch.Tensor, torch.Tensor]:
        """As of the source."""
        weight = f"{prefix}.weight"
        self._read |= {weight, scale_name(weight)}
        return self._source.quantized(prefix)

    def unused(self, names: Iterable[str]) -> set[str]:
        """Those of the names that were never read."""
        return set(names) - self._read
