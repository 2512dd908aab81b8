"""What tests of several stages of training use."""

from __future__ import annotations

import numpy as np
from numpy.typing import NDArray

from thalweg.kernels.reference import quant

DEQUANTISERS = {
    "fp8": quant.dequantize_fp8_weight,
    "fp4": quant.dequantize_mxfp4,
    "engram": quant.dequantize_mxfp8,
}
"""What reads the codes and scales of each format back."""


def documents(count: int, shortest: int, longest: int) -> NDArray[np.uint16]:
    """Documents that repeat a short phrase of their own: something to learn."""
    random = np.random.default_rng(0)
    pieces = []
    for _ in range(count):
        phrase = random.integers(5, 500, 7)
        pieces += [[0], np.resize(phrase, random.integers(shortest, longest)), [1]]
    return np.concatenate(pieces).astype(np.uint16)
