"""A step-time curve as a file: JSON, [[graph size in query tokens, milliseconds], ...], sizes ascending."""

from __future__ import annotations

import json
import os
from pathlib import Path
from typing import Any

from thalweg.dspark._json import is_integer, is_number, read_json, write_whole
from thalweg.dspark.curve import StepTimeCurve
from thalweg.interfaces import ConfigError, shown

MAX_SIZE = 1 << 20
"""No step has more query tokens than this."""


def read_curve(path: str | os.PathLike[str]) -> StepTimeCurve:
    """The curve in a file. Raises ConfigError, naming the file and the point, for anything else."""
    value = read_json(path)
    try:
        return curve_from_points(value)
    except ConfigError as error:
        raise ConfigError(f"{os.fspath(path)}: {error}") from error


def write_curve(path: str | os.PathLike[str], curve: StepTimeCurve) -> None:
    """Write a file that `read_curve` gives back exactly; readers never see half of it. Raises OSError."""
    write_whole(Path(path), curve_text(curve))


def curve_text(curve: StepTimeCurve) -> str:
    """The points as JSON."""
    return json.dumps([[size, time_ms] for size, time_ms in curve])


def curve_from_points(value: Any) -> StepTimeCurve:
    """The curve of a parsed JSON value. Raises ConfigError naming the point that is wrong."""
    if not isinstance(value, list):
        raise ConfigError(f"the curve is {shown(value)}; a list of [size, milliseconds] is needed")
    for i, point in enumerate(value):
        is_pair = isinstance(point, list) and len(point) == 2
        if not (is_pair and is_integer(point[0]) and is_number(point[1])):
            raise ConfigError(f"points[{i}] is {shown(point)}; an integer size and milliseconds are needed")
        if point[0] > MAX_SIZE:
            raise ConfigError(f"points[{i}] has size {shown(point[0])}; at most {MAX_SIZE} is possible")
    return StepTimeCurve([(size, float(time_ms)) for size, time_ms in value])
