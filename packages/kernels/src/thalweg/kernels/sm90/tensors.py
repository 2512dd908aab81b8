"""How tensors reach kernels: one-dimensional, on one CUDA device, with the integers they were given."""

from __future__ import annotations

import functools
import math

import torch
from torch import Tensor

from thalweg.interfaces import ConfigError
from thalweg.kernels.reference.numerics import check_integers as check_integers


def name_of(dtype: torch.dtype) -> str:
    """What TileLang calls a dtype."""
    return "bool" if dtype == torch.bool else str(dtype).removeprefix("torch.")


def check_device(**tensors: Tensor) -> None:
    """Raise ConfigError unless all tensors lie on one CUDA device."""
    if len({tensor.device for tensor in tensors.values()}) > 1 or any(not t.is_cuda for t in tensors.values()):
        where = ", ".join(f"{name} on {tensor.device}" for name, tensor in tensors.items())
        raise ConfigError(f"got {where}; one CUDA device is required")


@functools.cache
def processors(device: torch.device) -> int:
    """How many streaming multiprocessors a CUDA device has."""
    return torch.cuda.get_device_properties(device).multi_processor_count


def span(tensor: Tensor, dtype: torch.dtype | None = None) -> Tensor:
    """Everything from the first element of a tensor to its last, one-dimensional, whatever lies between.

    dtype: to see the bytes as; what does not fill an element at the end is left out.
    """
    size = 1 + sum((n - 1) * stride for n, stride in zip(tensor.shape, tensor.stride(), strict=True))
    if dtype is None or dtype == tensor.dtype:
        return tensor.as_strided((size,), (1,))
    whole = size * tensor.element_size() // dtype.itemsize * dtype.itemsize
    return tensor.as_strided((size,), (1,)).view(torch.uint8)[:whole].view(dtype)


def aligned_rows(rows: Tensor, elements: int, num_bytes: int = 16) -> Tensor:
    """rows [n, D] or a copy: each begins at a multiple of `elements` and of `num_bytes`, its elements are adjacent."""
    is_aligned = rows.stride(1) == 1 and rows.stride(0) % elements == 0 and rows.data_ptr() % num_bytes == 0
    return rows if is_aligned or rows.shape[0] == 0 else rows.contiguous()


def unit_bytes(limit: int, *numbers: int) -> int:
    """The largest power of two up to `limit` that divides all numbers of bytes."""
    return math.gcd(limit, *numbers)
