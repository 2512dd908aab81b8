"""The files that the corpus stage leaves for the others."""

from __future__ import annotations

import lzma
from pathlib import Path

import numpy as np
from numpy.typing import NDArray

from thalweg.interfaces import CheckpointError


def load_tokens(directory: Path, name: str) -> NDArray[np.uint16]:
    """The uint16 array `name`, from name.npy or, where only those travelled, from compressed parts.

    Parts are name.xz and name-*.xz, array files each, one after the other in the order of their names. Raises
    CheckpointError when there is nothing.
    """
    plain = directory / f"{name}.npy"
    if plain.is_file():
        tokens: NDArray[np.uint16] = np.load(plain)
        return tokens
    parts = sorted([*directory.glob(f"{name}.xz"), *directory.glob(f"{name}-*.xz")])
    if not parts:
        raise CheckpointError(
            f"{directory}: holds neither {plain.name} nor {name}.xz or {name}-*.xz; the corpus stage writes them"
        )
    return np.concatenate([_unpacked(part) for part in parts])


def _unpacked(path: Path) -> NDArray[np.uint16]:
    with lzma.open(path) as file:
        tokens: NDArray[np.uint16] = np.load(file)
    return tokens
