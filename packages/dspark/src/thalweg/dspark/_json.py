"""JSON as files of this package hold it: read with errors that name the file, written so that no reader sees half."""

from __future__ import annotations

import json
import os
from pathlib import Path
from typing import Any, NoReturn
from uuid import uuid4

from thalweg.interfaces import ConfigError


def parse_json(text: str | bytes) -> Any:
    """The value. Raises ValueError for what is no JSON, for NaN and infinities, which JSON does not have, and for bytes
    that are no UTF-8.
    """
    if isinstance(text, bytes):
        text = text.decode("utf-8")  # UnicodeDecodeError is a ValueError
    try:
        return json.loads(text, parse_constant=_refuse_constant)
    except RecursionError:
        raise ValueError("it is nested too deeply") from None


def read_json(path: str | os.PathLike[str]) -> Any:
    """The value in a file. Raises ConfigError for a file that cannot be read or holds no JSON."""
    try:
        return parse_json(Path(path).read_bytes())
    except OSError as error:
        raise ConfigError(f"{os.fspath(path)}: {error.strerror or error}") from error
    except ValueError as error:
        raise ConfigError(f"{os.fspath(path)} is not JSON: {error}") from error


def write_whole(path: Path, text: str) -> None:
    """Write to a neighbour, sync it and rename it, so that readers see all of it or none. Raises OSError."""
    try:
        write_through(path.with_name(f"{path.name}.{uuid4().hex}.tmp"), path, text)
    except OSError as error:
        raise OSError(error.errno, error.strerror, str(path)) from error


def write_through(temporary: Path, path: Path, text: str) -> None:
    """Write a new file under its temporary name, sync it and rename it. Raises OSError and leaves neither then."""
    try:
        with temporary.open("x", encoding="utf-8") as file:
            file.write(text)
            file.flush()
            os.fsync(file.fileno())
        temporary.replace(path)
    except BaseException:
        temporary.unlink(missing_ok=True)
        raise


def is_integer(value: object) -> bool:
    """Whether a parsed value is a JSON integer; true and false, which Python counts among them, are not."""
    return isinstance(value, int) and not isinstance(value, bool)


def is_number(value: object) -> bool:
    """Whether a parsed value is a JSON number that a float can hold."""
    return isinstance(value, float) or (isinstance(value, int) and is_integer(value) and abs(value) < 1 << 1000)


def _refuse_constant(name: str) -> NoReturn:
    raise ValueError(f"{name} is no number in JSON")
