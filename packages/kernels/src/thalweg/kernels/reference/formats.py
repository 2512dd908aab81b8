"""Element formats: the bytes of e4m3, e2m1 and ue8m0, and rounding to the first two without going through bytes.

e4m3 is the `fn` variant (largest 448, no infinity); e2m1 has magnitudes 0, .5, 1, 1.5, 2, 3, 4, 6 and the sign in bit
3, two per byte with the even column in the low nibble; ue8m0 byte b is 2^(b - 127) and 255 is NaN.
"""

from __future__ import annotations

import torch
from torch import Tensor

from thalweg.interfaces import ConfigError
from thalweg.kernels.reference.numerics import split_last

E4M3_MAX = 448.0
E2M1_MAX = 6.0
# Tensors: an operator that has to wrap a Python integer takes twice as long on small operands.
EXPONENT_BITS = torch.tensor(0x7F800000, dtype=torch.int32)
MANTISSA_BITS = torch.tensor(0x007FFFFF, dtype=torch.int32)

E2M1_VALUES = torch.tensor([0, 0.5, 1, 1.5, 2, 3, 4, 6, -0.0, -0.5, -1, -1.5, -2, -3, -4, -6])
E4M3_VALUES = torch.arange(256).to(torch.uint8).view(torch.float8_e4m3fn).float()
UE8M0_VALUES = torch.tensor([2.0 ** (byte - 127) for byte in range(255)] + [torch.nan])
_NIBBLES = torch.arange(256)
# Both values of a byte as one 64-bit word: a single look-up then fetches the pair.
_PAIR_WORDS = torch.stack((E2M1_VALUES[_NIBBLES & 15], E2M1_VALUES[_NIBBLES >> 4]), -1).view(torch.int64).flatten()


def encode_e4m3(x: Tensor) -> Tensor:
    """e4m3 bytes of float32 x: clamp to +-448, round to nearest even."""
    return torch.clamp(x, -E4M3_MAX, E4M3_MAX).to(torch.float8_e4m3fn).view(torch.uint8)


def decode_e4m3(codes: Tensor) -> Tensor:
    """float32 values of e4m3 bytes."""
    return _look_up(E4M3_VALUES, codes)


def round_e4m3(x: Tensor) -> Tensor:
    """decode_e4m3(encode_e4m3(x)) of float32 x."""
    clamped = torch.clamp(x, -E4M3_MAX, E4M3_MAX)
    step = _binade(clamped).clamp(min=2.0**-6) * 2.0**-3
    return torch.round(clamped / step) * step


def encode_e2m1(x: Tensor) -> Tensor:
    """4-bit codes (uint8) of float32 x: round to nearest, ties to the even code, saturate at 6, keep the sign of 0."""
    magnitude = torch.nan_to_num(x.abs(), nan=E2M1_MAX).clamp(max=E2M1_MAX)
    binade = _binade(magnitude).clamp(min=1)
    steps = torch.round(2 * magnitude / binade)  # in units of the spacing, which is half of 1, 2 or 4
    code = steps.int() + (binade.view(torch.int32) >> 22) - 254  # two codes to each binade above that of 1
    return (code + (torch.signbit(x).int() << 3)).to(torch.uint8)


def decode_e2m1(codes: Tensor) -> Tensor:
    """float32 values of 4-bit codes, one per byte."""
    return _look_up(E2M1_VALUES, codes)


def decode_e2m1_pairs(packed: Tensor) -> Tensor:
    """float32 values [..., D] of packed codes [..., D / 2]."""
    return _look_up(_PAIR_WORDS, packed).view(torch.float32)


def round_e2m1(x: Tensor) -> Tensor:
    """decode_e2m1(encode_e2m1(x)) of float32 x."""
    clamped = torch.clamp(x, -E2M1_MAX, E2M1_MAX)
    step = _binade(clamped).clamp(min=1) * 0.5
    return torch.round(clamped / step) * step


def pack_nibbles(codes: Tensor) -> Tensor:
    """Two 4-bit codes per byte along the last axis, even column in the low nibble."""
    pairs = split_last(codes, 2)
    return pairs[..., 0] | (pairs[..., 1] << 4)


def unpack_nibbles(packed: Tensor) -> Tensor:
    """The 4-bit codes of pack_nibbles."""
    return torch.stack((packed & 15, packed >> 4), -1).flatten(-2)


def round_up_to_power(scale: Tensor) -> Tensor:
    """Positive float32 scales rounded up to a power of two; exact powers stay, infinity stays."""
    return ((scale.view(torch.int32) + MANTISSA_BITS) & EXPONENT_BITS).view(torch.float32)


def encode_ue8m0(power: Tensor) -> Tensor:
    """Exponent bytes of float32 powers of two from 2^-126 up; infinity is 255."""
    return (power.view(torch.int32) >> 23).to(torch.uint8)


def decode_ue8m0(codes: Tensor) -> Tensor:
    """float32 values of exponent bytes."""
    return _look_up(UE8M0_VALUES, codes)


def _binade(x: Tensor) -> Tensor:
    """The power of two at or below |x|, 0 for subnormal x."""
    return (x.contiguous().view(torch.int32) & EXPONENT_BITS).view(torch.float32)


def _look_up(table: Tensor, codes: Tensor) -> Tensor:
    if codes.dtype != torch.uint8:
        raise ConfigError(f"codes have dtype {codes.dtype}; uint8 is required")
    index = codes.reshape(-1).int()
    return torch.index_select(table.to(codes.device), 0, index).view(codes.shape)
