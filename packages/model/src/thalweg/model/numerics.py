"""Where the forward pass rounds and quantises, and in which dtype it carries numbers in between.

The model is one sequence of operations; a `Numerics` decides what its quantisation points do. In `plain` mode every
point is the identity. In `quant` mode a point rounds the value to its format and hands it back in the carrier dtype,
float64 for `exact` arithmetic and float32 otherwise.
"""

from __future__ import annotations

import enum
from typing import TypeVar

import torch

from thalweg.interfaces import ConfigError
from thalweg.kernels import BoundOps

_Choice = TypeVar("_Choice", bound=enum.Enum)


class Mode(enum.Enum):
    """Whether the quantisation points of the model do anything."""

    QUANT = "quant"
    PLAIN = "plain"


class Arithmetic(enum.Enum):
    """The carrier of values between quantisation points."""

    EXACT = "exact"
    FLOAT32 = "float32"


class Numerics:
    """The quantisation points of one model; every method takes and returns the carrier dtype and any shape.

    Raises ConfigError for an unknown mode or arithmetic.
    """

    __slots__ = ("_rounds_f32", "arithmetic", "dtype", "is_quant", "mode", "ops")

    def __init__(self, mode: str | Mode, arithmetic: str | Arithmetic, ops: BoundOps) -> None:
        """ops: the kernels of the device, from `thalweg.kernels.bind`."""
        self.mode = _choose(Mode, "mode", mode)
        self.arithmetic = _choose(Arithmetic, "arithmetic", arithmetic)
        self.is_quant = self.mode is Mode.QUANT
        self.dtype = torch.float64 if self.arithmetic is Arithmetic.EXACT else torch.float32
        self._rounds_f32 = self.is_quant and self.dtype is torch.float64
        self.ops = ops

    def bf16(self, x: torch.Tensor) -> torch.Tensor:
        """Round to bfloat16 (through fp32, as a cast of a double does)."""
        rounded: torch.Tensor = self.ops.round_bf16(x) if self.is_quant else x
        return rounded

    def f32(self, x: torch.Tensor) -> torch.Tensor:
        """Round to float32: the points where the model keeps single precision."""
        rounded: torch.Tensor = self.ops.round_f32(x) if self._rounds_f32 else x
        return rounded

    def mxfp8(self, x: torch.Tensor) -> torch.Tensor:
        """Inputs of FP8 and FP4 linears and window keys: E4M3 in groups of 32 along the last axis."""
        value: torch.Tensor = self.ops.fake_mxfp8(x) if self.is_quant else x
        return value

    def mxfp4(self, x: torch.Tensor) -> torch.Tensor:
        """Index queries and keys: E2M1 in groups of 32 along the last axis."""
        value: torch.Tensor = self.ops.fake_mxfp4(x) if self.is_quant else x
        return value

    def fp4_main(self, x: torch.Tensor) -> torch.Tensor:
        """Compressed keys: E2M1 in groups of 16 with an E4M3 scale."""
        value: torch.Tensor = self.ops.fake_fp4_e4m3(x) if self.is_quant else x
        return value

    def linear(self, x: torch.Tensor, weight: torch.Tensor) -> torch.Tensor:
        """x [n, i] times weight [o, i], rounded to bfloat16: what every linear but three of the model does."""
        return self.bf16(self.ops.matmul(x, weight))


def _choose(kind: type[_Choice], field: str, value: str | _Choice) -> _Choice:
    try:
        return kind(value)
    except ValueError:
        accepted = ", ".join(repr(member.value) for member in kind)
        raise ConfigError(f"{field} is {value!r}; accepted: {accepted}") from None
