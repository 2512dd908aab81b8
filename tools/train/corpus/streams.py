"""Compresses a stream into files small enough to be carried to the machine that trains."""

from __future__ import annotations

import io
import lzma
from concurrent.futures import ProcessPoolExecutor
from pathlib import Path

import numpy as np
from numpy.typing import NDArray

from thalweg.interfaces import ConfigError

MAX_TOKENS = 48_000_000
"""Of one file: at about half a byte a token, some 24 MB, where 28 MB may be carried."""
MAX_BYTES = 28_000_000
FILTERS = [{"id": lzma.FILTER_LZMA2, "preset": 6, "dict_size": 1 << 26, "lc": 3, "lp": 1, "pb": 1}]
"""Of the presets 1 to 9, 6 is as small as 9; lp and pb tell it that tokens have two bytes."""


def compress(tokens: NDArray[np.uint16], folder: Path, name: str, max_tokens: int = MAX_TOKENS) -> list[Path]:
    """Write name-1.xz, name-2.xz, ... of equal lengths, each an .npy file of a part of the stream, in its order.

    Files of an earlier, longer stream are removed. Two processes share the work.
    Raises ConfigError when a file is too large to be carried.
    """
    for stale in folder.glob(f"{name}-*.xz"):
        stale.unlink()
    parts = np.array_split(tokens, -(-len(tokens) // max_tokens))
    with ProcessPoolExecutor(2) as pool:
        packed = pool.map(_xz, parts)
        return [_write(content, folder / f"{name}-{number}.xz") for number, content in enumerate(packed, 1)]


def _xz(tokens: NDArray[np.uint16]) -> bytes:
    file = io.BytesIO()
    np.save(file, tokens)
    return lzma.compress(file.getvalue(), filters=FILTERS)


def _write(content: bytes, path: Path) -> Path:
    if len(content) > MAX_BYTES:
        raise ConfigError(f"{path.name} has {len(content)} bytes, {MAX_BYTES} may be carried: lower MAX_TOKENS")
    path.write_bytes(content)
    return path
