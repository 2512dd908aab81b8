"""The files that the corpus stage leaves for the others."""

from __future__ import annotations

import lzma
from pathlib import Path

import numpy as np
from numpy.typing import NDArray

from thalweg.interfaces import CheckpointError


def load_tokens(directory: Path, name: str) -> NDArray[np.uint16]:
    """The uint16 array `name`, from name.npy or, where only that travelled, name.xz, the same file compressed.

    Raises CheckpointError when there is neither.
    """
    plain, packed = directory / f"{name}.npy", directory / f"{name}.xz"
    if plain.is_file():
        tokens: NDArray[np.uint16] = np.load(plain)
        return tokens
    if packed.is_file():
        with lzma.open(packed) as file:
            unpacked: NDArray[np.uint16] = np.load(file)
            return unpacked
    raise CheckpointError(f"{directory}: holds neither {plain.name} nor {packed.name}; the corpus stage writes them")
