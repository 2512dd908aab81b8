"""Measured step-time curves on disk, so that a restart need not measure again."""

from __future__ import annotations

import logging
import math
import os
import re
import stat
import time
from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path
from uuid import uuid4

from thalweg.dspark._checks import is_real
from thalweg.dspark._json import parse_json, write_through
from thalweg.dspark.curve import StepTimeCurve
from thalweg.dspark.curve_file import curve_from_points, curve_text
from thalweg.dspark.curve_key import CurveKey
from thalweg.interfaces import ConfigError, shown

logger = logging.getLogger(__name__)

GRACE_S = 7200
"""How long an expired file stays before it is removed; another process may still be reading it."""
MAX_FILE_BYTES = 1 << 24
"""No curve is as long as this, so a larger file is not read."""
_NAME = re.compile(r"(?P<digest>[0-9a-f]{64})\.[0-9a-f]{32}\.(?P<stamp_s>[0-9]{1,12})(?P<temporary>\.tmp)?")


@dataclass(frozen=True, slots=True)
class _Entry:
    path: Path
    digest: str
    stamp_s: int
    is_temporary: bool


class CurveCache:
    """One file per measurement, `<digest of the key>.<uuid4>.<unix seconds>`; the newest that fits is used.

    Nothing here raises for what the disk does: a cache that cannot be read or written is a warning and no cache. Files
    of other names are left alone. In a job of several ranks one should use it and pass the result on.
    """

    def __init__(
        self, directory: str | os.PathLike[str], ttl_s: float = 3600, *, clock: Callable[[], float] = time.time
    ) -> None:
        """ttl_s: how long a measurement counts. clock: seconds since 1970. Raises ConfigError for a bad ttl_s."""
        if not is_real(ttl_s) or not 0 < ttl_s < math.inf:
            raise ConfigError(f"ttl_s is {shown(ttl_s)}; a finite number of seconds above 0 is needed")
        self._directory = Path(directory)
        self._ttl_s = ttl_s
        self._clock = clock

    def load(self, key: CurveKey) -> StepTimeCurve | None:
        """The newest curve of this key and these sizes; None when there is none younger than the limit.

        A file from further in the future than the limit is not trusted either: the clock was wrong then or is now.
        """
        digest, now_s = key.digest, self._clock()
        entries = [entry for entry in self._entries() if entry.digest == digest and not entry.is_temporary]
        for entry in sorted(entries, key=lambda entry: (entry.stamp_s, entry.path.name), reverse=True):
            if abs(now_s - entry.stamp_s) > self._ttl_s:
                continue
            curve = _read(entry.path)
            if curve is None:
                continue
            if tuple(curve.sizes) == key.sizes:
                return curve
            logger.warning("%s holds %s; sizes %s are needed", entry.path, shown(curve.sizes), shown(key.sizes))
        return None

    def store(self, key: CurveKey, curve: StepTimeCurve) -> None:
        """Write a measurement and remove those that expired long ago.

        Raises ConfigError when the curve has other sizes than the key.
        """
        if tuple(curve.sizes) != key.sizes:
            raise ConfigError(f"the curve has sizes {shown(curve.sizes)} and the key {shown(key.sizes)}")
        path = self._directory / f"{key.digest}.{uuid4().hex}.{max(0, int(self._clock()))}"
        try:
            self._directory.mkdir(parents=True, exist_ok=True)
            write_through(path.with_name(f"{path.name}.tmp"), path, curve_text(curve))
        except OSError as error:
            logger.warning("the step-time curve is not kept: %s", error)
        self._remove_expired()

    def _entries(self) -> list[_Entry]:
        """Files whose names are ours; none when the directory is missing or cannot be listed."""
        try:
            names = os.listdir(self._directory)
        except FileNotFoundError:
            return []
        except OSError as error:
            logger.warning("kept step-time curves cannot be listed: %s", error)
            return []
        matches = [match for name in names if (match := _NAME.fullmatch(name))]
        return [
            _Entry(self._directory / match[0], match["digest"], int(match["stamp_s"]), match["temporary"] is not None)
            for match in matches
        ]

    def _remove_expired(self) -> None:
        oldest_s = self._clock() - self._ttl_s - GRACE_S
        for entry in self._entries():
            if entry.stamp_s >= oldest_s:
                continue
            try:
                entry.path.unlink(missing_ok=True)
            except OSError as error:
                logger.warning("an expired step-time curve stays: %s", error)


def _read(path: Path) -> StepTimeCurve | None:
    try:
        if not stat.S_ISREG(path.stat().st_mode):
            raise ValueError("it is no regular file")  # reading a pipe would wait for ever
        with path.open("rb") as file:
            content = file.read(MAX_FILE_BYTES + 1)
        if len(content) > MAX_FILE_BYTES:
            raise ValueError(f"it is longer than {MAX_FILE_BYTES} bytes")
        return curve_from_points(parse_json(content))
    except FileNotFoundError:
        return None  # removed by another process since it was listed
    except (OSError, ValueError) as error:
        logger.warning("%s is no step-time curve: %s", path, error)
        return None
