"""Rows as device kernels hand them to each other: bfloat16, or e4m3 codes with power-of-two scales."""

from __future__ import annotations

from typing import NamedTuple

from torch import Tensor


class Mxfp8Rows(NamedTuple):
    """Rows of K elements in MXFP8, contiguous."""

    codes: Tensor
    """uint8 [n, K] e4m3"""
    scales: Tensor
    """uint8 [n, K / 32] ue8m0"""


class ReadRows(NamedTuple):
    """What a sub-layer reads from the trunk: normed rows as they are, and quantised."""

    rows: Tensor
    """bfloat16 [n, h]"""
    codes: Tensor
    """uint8 [n, h] e4m3"""
    scales: Tensor
    """uint8 [n, h / 32] ue8m0"""

    @property
    def quantized(self) -> Mxfp8Rows:
        """The rows in MXFP8."""
        return Mxfp8Rows(self.codes, self.scales)


class HcMix(NamedTuple):
    """Coefficients of a hyper-connection: n rows, m streams."""

    next_read: Tensor
    """float32 [n, m] weights with which the next sub-layer reads the trunk."""
    write: Tensor
    """float32 [n, m] weight of the sub-layer's output in each stream."""
    carry: Tensor
    """float32 [n, m, m] how much of stream j (first) goes on in stream k (second)."""
