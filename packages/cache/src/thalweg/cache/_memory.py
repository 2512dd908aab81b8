"""Raw memory of a pool."""

from __future__ import annotations

from collections.abc import Iterable

import numpy as np
import torch

from thalweg.interfaces import ConfigError

_PAGE_BYTES = 4096


def allocate(rows: int, row_bytes: int, device: torch.device | str) -> torch.Tensor:
    """Zeroed uint8 [rows, row_bytes]; the allocation behind it is a whole number of 4096-byte pages."""
    total = rows * row_bytes
    rounded = -(-total // _PAGE_BYTES) * _PAGE_BYTES
    if torch.device(device).type == "cpu":
        # The system's zero pages: memory that no sequence ever reaches is never touched, and costs nothing.
        flat = torch.from_numpy(np.zeros(rounded, np.uint8))
    else:
        flat = torch.zeros(rounded, dtype=torch.uint8, device=device)
    return flat[:total].view(rows, row_bytes)


def fill_rows(pool: torch.Tensor, rows: Iterable[int], value: int) -> None:
    """Set every byte of the given rows of a pool [rows, row_bytes]."""
    index = torch.tensor(list(rows), dtype=torch.int64, device=pool.device)
    if index.numel() and not 0 <= int(index.min()) <= int(index.max()) < pool.shape[0]:
        raise ConfigError(f"rows {index.tolist()} are not all in the pool; 0..{pool.shape[0] - 1} are accepted")
    pool[index] = value
