"""Histories and placements on disk, as npz."""

from __future__ import annotations

import os
import zipfile
import zlib
from pathlib import Path
from typing import TYPE_CHECKING, Any

import numpy as np

from thalweg.eplb.history import check_history
from thalweg.eplb.placement import Placement, check_placement
from thalweg.interfaces import ConfigError

if TYPE_CHECKING:
    from numpy.typing import NDArray

    from thalweg.eplb.history import History

HISTORY = "tokens_per_expert"
"""[steps, layers, experts], unsigned or signed integers, or floats."""


def write_history(path: str | os.PathLike[str], history: History) -> None:
    """Save a history for later planning. Raises ConfigError for what is none, and OSError."""
    _write(path, {HISTORY: check_history(history)})


def read_history(path: str | os.PathLike[str]) -> History:
    """The history in the file. Raises ConfigError where the file holds none, and OSError."""
    (history,) = _read(path, HISTORY)
    try:
        return check_history(history)
    except ConfigError as error:
        raise ConfigError(f"{os.fspath(path)}: {error}") from None


def write_placement(path: str | os.PathLike[str], placement: Placement) -> None:
    """Save a placement with both of its tables. Raises ConfigError for what is none, and OSError."""
    check_placement("placement", placement)
    arrays = {
        "logical_of_physical": placement.logical_of_physical,
        "physical_of_logical": placement.physical_of_logical,
        "num_ranks": np.array(placement.num_ranks),
    }
    _write(path, arrays)


def read_placement(path: str | os.PathLike[str]) -> Placement:
    """The placement in the file. Raises ConfigError where the file holds none or its tables disagree, and OSError."""
    held, slots, num_ranks = _read(path, "logical_of_physical", "physical_of_logical", "num_ranks")
    if num_ranks.shape != () or num_ranks.dtype.kind not in "iu":
        raise ConfigError(f"{os.fspath(path)}: num_ranks is {num_ranks!r}; it must be one integer")
    try:
        return Placement.from_tables(held, slots, int(num_ranks))
    except ConfigError as error:
        raise ConfigError(f"{os.fspath(path)}: {error}") from None


def _write(path: str | os.PathLike[str], arrays: dict[str, NDArray[Any]]) -> None:
    with zipfile.ZipFile(Path(path), "w", zipfile.ZIP_DEFLATED) as archive:
        for name, array in arrays.items():
            with archive.open(f"{name}.npy", "w", force_zip64=True) as file:
                np.lib.format.write_array(file, array, allow_pickle=False)


def _read(path: str | os.PathLike[str], *names: str) -> list[NDArray[Any]]:
    try:
        with Path(path).open("rb") as file, zipfile.ZipFile(file) as archive:
            found = [name.removesuffix(".npy") for name in archive.namelist()]
            missing = [name for name in names if name not in found]
            if missing:
                has = ", ".join(found) or "nothing"
                raise ConfigError(f"{os.fspath(path)} holds no {missing[0]}; it has {has}")
            return [_read_array(archive, name) for name in names]
    except ConfigError:
        raise
    except (ValueError, EOFError, zipfile.BadZipFile, zlib.error) as error:
        raise ConfigError(f"{os.fspath(path)} cannot be read as npz: {error}") from error


def _read_array(archive: zipfile.ZipFile, name: str) -> NDArray[Any]:
    with archive.open(f"{name}.npy") as file:
        array: NDArray[Any] = np.lib.format.read_array(file, allow_pickle=False)
        return array
