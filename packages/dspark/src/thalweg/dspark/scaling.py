"""Confidences as logits, and what a temperature makes of them."""

from __future__ import annotations

from collections.abc import Sequence

import numpy as np
from numpy.typing import NDArray

NEAREST = 2.0**-25
"""Confidences nearer to 0 or 1 count as this near: float32 holds nothing between 1 - 2**-24 and 1."""


def logits(confidences: NDArray[np.float64]) -> NDArray[np.float64]:
    """log(c / (1 - c)), finite for every confidence from 0 to 1; NaN stays NaN."""
    within = np.clip(confidences, NEAREST, 1 - NEAREST)
    return np.log(within) - np.log1p(-within)


def log_confidences(logits: NDArray[np.float64], temperature: float) -> NDArray[np.float64]:
    """Logarithm of the confidences at a temperature; always below 0; NaN stays NaN."""
    with np.errstate(invalid="ignore"):
        return -np.logaddexp(0.0, -logits / temperature)


def survival_at(confidences: NDArray[np.float64], temperatures: Sequence[float]) -> NDArray[np.float64]:
    """[R, G] chances that each draft and all before it hold, from confidences [R, G] recorded at temperature 1.

    A position at temperature 1 counts as recorded, so that confidences of 0 and 1 mean it. NaN where a draft or one
    before it has no confidence.
    """
    scaled = [
        confidences[:, j] if temperature == 1 else np.exp(log_confidences(logits(confidences[:, j]), temperature))
        for j, temperature in enumerate(temperatures)
    ]
    return np.cumprod(np.stack(scaled, axis=1), axis=1)
