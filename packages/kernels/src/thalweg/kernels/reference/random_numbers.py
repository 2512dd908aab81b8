"""Counter-based random numbers: each is a pure function of (seed, position, case), whatever else is drawn.

Seeds are 64-bit patterns: uint64 or int64 tensors, taken modulo 2^64.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import torch
from torch import Tensor

from thalweg.interfaces import ConfigError
from thalweg.kernels.reference.numerics import check_integers, check_shape

FRESH, RESIDUAL, COIN = 0, 1, 2


def _signed(value: int) -> int:
    """A 64-bit pattern as the int64 that has it."""
    return value - 2**64 if value >= 2**63 else value


GAMMA = _signed(0x9E3779B97F4A7C15)
_MIX_1 = _signed(0xBF58476D1CE4E5B9)
_MIX_2 = _signed(0x94D049BB133111EB)


def _shift_right(z: Tensor, count: int) -> Tensor:
    """Logical shift of int64 bit patterns."""
    return (z >> count).bitwise_and_((1 << (64 - count)) - 1)


def hash_input(seeds: Tensor, positions: Tensor, case: int) -> Tensor:
    """64-bit input of the hash, as int64, of seeds [n] and positions int [n] in one of the three namespaces."""
    if case not in (FRESH, RESIDUAL, COIN):
        raise ConfigError(f"case is {case}; 0 (fresh), 1 (residual) and 2 (acceptance coin) are accepted")
    check_streams(tuple(seeds.shape), seeds, positions)
    bits = seeds.view(torch.int64)
    state = (3 * positions.long() + case) * GAMMA
    return bits ^ state if case == COIN else bits + (state ^ (state << 13))


def check_streams(shape: int | tuple[int, ...], seeds: Tensor, positions: Tensor) -> None:
    """Raise ConfigError unless these are seeds and positions of random streams, so many or of this shape."""
    sizes = (shape,) if isinstance(shape, int) else shape
    if seeds.dtype not in (torch.int64, torch.uint64):
        raise ConfigError(f"seeds have dtype {seeds.dtype}; uint64 or int64 is required")
    check_shape("seeds", seeds, sizes)
    check_integers("positions", positions, sizes)


def splitmix_hash(x: Tensor) -> Tensor:
    """SplitMix64's output for the int64 bit patterns x, as int64."""
    if x.dtype != torch.int64:
        raise ConfigError(f"x has dtype {x.dtype}; int64 is required")
    z = x + GAMMA
    z.bitwise_xor_(_shift_right(z, 30)).mul_(_MIX_1)
    z.bitwise_xor_(_shift_right(z, 27)).mul_(_MIX_2)
    return z.bitwise_xor_(_shift_right(z, 31))


def unit_interval(z: Tensor) -> Tensor:
    """float64 numbers in [0, 1) from the upper 53 bits of int64 bit patterns."""
    return _shift_right(z, 11).double().mul_(2.0**-53)


def uniform(seeds: Tensor, positions: Tensor, case: int = FRESH) -> Tensor:
    """float64 numbers in [0, 1), a pure function of (seed, position, case)."""
    return unit_interval(splitmix_hash(hash_input(seeds, positions, case)))


OPS: dict[str, Callable[..., Any]] = {"splitmix_hash": splitmix_hash, "uniform": uniform}
