"""Raw memory of a pool."""

from __future__ import annotations

from collections.abc import Iterable

import numpy as np
import torch

from thalweg.interfaces import CapacityError, ConfigError

_PAGE_BYTES = 4096


def allocate(rows: int, row_bytes: int, device: torch.device | str) -> torch.Tensor:
    """Zeroed uint8 [rows, row_bytes]; the allocation behind it is a whole number of 4096-byte pages.

    Raises CapacityError when there is not so much memory.
    """
    total = rows * row_bytes
    rounded = -(-total // _PAGE_BYTES) * _PAGE_BYTES
    try:
        flat = _zeros(rounded, device)
    except (MemoryError, ValueError, torch.OutOfMemoryError) as error:  # ValueError: more than numpy can address
        raise CapacityError(
            f"the cache asks for {rows} rows of {row_bytes} bytes; {device} lacks that memory"
        ) from error
    return flat[:total].view(rows, row_bytes)


def _zeros(num_bytes: int, device: torch.device | str) -> torch.Tensor:
    if torch.device(device).type == "cpu":
        # The system's zero pages: memory that no sequence ever reaches is never touched, and costs nothing.
        return torch.from_numpy(np.zeros(num_bytes, np.uint8))
    return torch.zeros(num_bytes, dtype=torch.uint8, device=device)


def fill_rows(pool: torch.Tensor, rows: Iterable[int], value: int) -> None:
    """Set every byte of the given rows of a pool [rows, row_bytes]."""
    index = torch.tensor(list(rows), dtype=torch.int64, device=pool.device)
    if index.numel() and not 0 <= int(index.min()) <= int(index.max()) < pool.shape[0]:
        raise ConfigError(f"rows {index.tolist()} are not all in the pool; 0..{pool.shape[0] - 1} are accepted")
    pool[index] = value
