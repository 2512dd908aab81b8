"""Roundings and elementwise functions whose bits do not depend on the batch.

A reference op works in the carrier dtype it is given (float64 or float32). A bfloat16 input is computed in float32 and
rounded once on output.
"""

from __future__ import annotations

from collections.abc import Callable
from numbers import Integral
from typing import Any

import torch
from torch import Tensor

from thalweg.interfaces import ConfigError

CARRIERS = (torch.float64, torch.float32, torch.bfloat16)
INTEGERS = (torch.int32, torch.int64)
MOST = (1 << 31) - 1
"""The largest number that kernels take for a size."""
SUM_PIECE = 8192


def round_bf16(x: Tensor) -> Tensor:
    """The values of `x` rounded to bfloat16, in the dtype of `x`; a cast of float64 goes through float32."""
    return x.bfloat16().type_as(x)


def round_f32(x: Tensor) -> Tensor:
    """The values of `x` rounded to float32, in the dtype of `x`."""
    return x.float().type_as(x)


def sigmoid(x: Tensor) -> Tensor:
    """1 / (1 + e^-x). torch.sigmoid rounds the vector body and the tail of a loop differently, so it is not used."""
    return torch.reciprocal(1 + torch.exp(-x))


def softplus(x: Tensor) -> Tensor:
    """log(1 + e^x), and x itself above 20."""
    return torch.where(x > 20, x, torch.log1p(torch.exp(torch.clamp(x, max=20))))


def split_last(x: Tensor, size: int) -> Tensor:
    """x [..., D] viewed as [..., D / size, size]."""
    return x.reshape(*x.shape[:-1], x.shape[-1] // size, size)


def sum_last(x: Tensor) -> Tensor:
    """Sum over the last axis in pieces of fixed width, so that no thread count can regroup a long row."""
    width = x.shape[-1]
    if width <= SUM_PIECE:
        return x.contiguous().sum(-1)
    whole = width // SUM_PIECE * SUM_PIECE
    total = split_last(x[..., :whole], SUM_PIECE).contiguous().sum(-1).sum(-1)
    return total if whole == width else total + x[..., whole:].contiguous().sum(-1)


def carried(x: Tensor, name: str = "x") -> Tensor:
    """`x` in the dtype that the arithmetic uses: float32 for bfloat16, unchanged otherwise."""
    if x.dtype not in CARRIERS:
        raise ConfigError(f"{name} has dtype {x.dtype}; float64, float32 and bfloat16 are accepted")
    return x.float() if x.dtype == torch.bfloat16 else x


def check_shape(name: str, tensor: Tensor, expected: tuple[int | str, ...]) -> None:
    """Raise ConfigError unless `tensor` has this shape; a string stands for any size."""
    shape = tuple(tensor.shape)
    if shape == expected:
        return
    named = tuple(got if isinstance(want, str) else want for want, got in zip(expected, shape, strict=False))
    if named != shape or len(expected) != len(shape):
        wanted = ", ".join(str(size) for size in expected)
        raise ConfigError(f"{name} has shape {list(shape)}; [{wanted}] is expected")


def check_tensor(name: str, tensor: Tensor, expected: tuple[int | str, ...], dtype: torch.dtype) -> None:
    """Raise ConfigError unless `tensor` has this shape, as in `check_shape`, and this dtype."""
    check_shape(name, tensor, expected)
    if tensor.dtype != dtype:
        raise ConfigError(f"{name} has dtype {tensor.dtype}; {dtype} is required")


def check_integers(name: str, tensor: Tensor, expected: tuple[int | str, ...] | None = None) -> None:
    """Raise ConfigError unless `tensor` holds int32 or int64 and, where given, has this shape."""
    if expected is not None:
        check_shape(name, tensor, expected)
    if tensor.dtype not in INTEGERS:
        raise ConfigError(f"{name} has dtype {tensor.dtype}; int32 or int64 is required")


def check_floats(name: str, tensor: Tensor, expected: tuple[int | str, ...]) -> None:
    """Raise ConfigError unless `tensor` has this shape and a dtype of real floating point."""
    check_shape(name, tensor, expected)
    if not tensor.is_floating_point():
        raise ConfigError(f"{name} has dtype {tensor.dtype}; floating point is required")


def check_count(name: str, value: int, least: int = 0, most: int = MOST) -> None:
    """Raise ConfigError unless `value` is an integer from `least` to `most`."""
    if not (isinstance(value, Integral) and least <= value <= most):
        raise ConfigError(f"{name} is {value}; an integer from {least} to {most} is accepted")


OPS: dict[str, Callable[..., Any]] = {"round_bf16": round_bf16, "round_f32": round_f32}
