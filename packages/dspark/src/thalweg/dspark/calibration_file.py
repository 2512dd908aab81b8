"""A calibration as a file: JSON with temperatures, and what they were fitted on and with what success."""

from __future__ import annotations

import json
import os
from pathlib import Path

from thalweg.dspark._json import is_number, read_json, write_whole
from thalweg.dspark.calibration import Calibration, Quality
from thalweg.dspark.temperatures import parse_temperatures
from thalweg.interfaces import ConfigError, shown


def write_calibration(path: str | os.PathLike[str], calibration: Calibration, dataset: str) -> None:
    """Write {temperatures, dataset, num_samples, ece_before, ece_after}. Raises OSError."""
    value = {
        "temperatures": list(calibration.temperatures),
        "dataset": dataset,
        "num_samples": calibration.num_records,
        "ece_before": [_error(position.before) for position in calibration.positions],
        "ece_after": [_error(position.after) for position in calibration.positions],
    }
    write_whole(Path(path), json.dumps(value, indent=2) + "\n")


def read_temperatures(path: str | os.PathLike[str], draft_length: int) -> tuple[float, ...]:
    """The temperatures of a calibration file, exactly draft_length of them; the other entries are not looked at.

    Raises ConfigError, naming the file, for anything else.
    """
    value = read_json(path)
    temperatures = value.get("temperatures") if isinstance(value, dict) else None
    if not isinstance(temperatures, list) or not all(is_number(temperature) for temperature in temperatures):
        raise ConfigError(f"{os.fspath(path)} is {shown(value)}; an object with a list of temperatures is needed")
    if len(temperatures) != draft_length:
        raise ConfigError(f"{os.fspath(path)} has {len(temperatures)} temperatures; {draft_length} are needed")
    try:
        return parse_temperatures(temperatures, draft_length)
    except ConfigError as error:
        raise ConfigError(f"{os.fspath(path)}: {error}") from error


def _error(quality: Quality | None) -> float | None:
    return None if quality is None else quality.reliability.error
