"""Writes what calibration needs while an engine runs: one line per verified row."""

from __future__ import annotations

import json
import logging
import os
import sys
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import IO, Any

import numpy as np
from numpy.typing import NDArray

from thalweg.dspark._checks import require_array, require_integers
from thalweg.dspark._json import parse_json
from thalweg.dspark.record_format import MAX_HEADER_BYTES, header, parse_header
from thalweg.interfaces import ConfigError

if sys.platform != "win32":
    import fcntl

logger = logging.getLogger(__name__)


class ConfidenceRecorder:
    """Appends to a file of confidence records; processes of one host may share a file, as lines are appended whole.

    Every call of `add` has left the process when it returns, so a killed process loses nothing. When the disk fails it
    says so once and records no more: serving goes on. Usable as a context manager.
    """

    def __init__(self, path: str | os.PathLike[str], draft_length: int) -> None:
        """Open a file, new or with records of the same draft length. A last line that was cut off is removed.

        Raises ConfigError for a file that cannot be opened or is something else, which is then left as it is.
        """
        self.draft_length = draft_length
        self.num_records = 0
        """Written by this object."""
        self._path = Path(path)
        self._first_line = f"{json.dumps(header(draft_length))}\n".encode()
        try:
            self._file = open(self._path, "a+b", buffering=0)  # noqa: SIM115 - closed by close()
        except OSError as error:
            raise ConfigError(f"{self._path}: {error.strerror or error}") from error
        try:
            with _locked(self._file):  # or two processes would both begin a new file
                self._continue_file()
        except OSError as error:
            self._file.close()
            raise ConfigError(f"{self._path}: {error.strerror or error}") from error
        except ConfigError:
            self._file.close()
            raise

    def __enter__(self) -> ConfidenceRecorder:
        return self

    def __exit__(self, *_: object) -> None:
        self.close()

    @property
    def is_recording(self) -> bool:
        """False after `close` and after the disk failed."""
        return not self._file.closed

    def add(
        self,
        confidences: NDArray[np.float32],
        num_verified: NDArray[np.integer[Any]],
        num_accepted: NDArray[np.integer[Any]],
    ) -> None:
        """Record N rows: what the drafter said of the drafts just verified, and what became of them.

        confidences: float32 [N, G], at temperature 1; places beyond the verified ones are not read. num_verified,
        num_accepted: integers [N]. Rows that verified nothing leave no record. Raises ValueError, and records nothing,
        for anything else, and for a confidence of a verified draft that is no probability.
        """
        self._check(confidences, num_verified, num_accepted)
        rows = zip(confidences.tolist(), num_verified.tolist(), num_accepted.tolist(), strict=True)
        lines = [_line(row[:count], accepted) for row, count, accepted in rows if count]
        if lines and self.is_recording and self._write("".join(lines).encode()):
            self.num_records += len(lines)

    def close(self) -> None:
        """Idempotent."""
        self._file.close()

    def _continue_file(self) -> None:
        """Check what is there already, and leave the file at the end of its last whole line."""
        self._file.seek(0)
        first_line = self._file.readline(MAX_HEADER_BYTES)
        if not first_line:
            self._file.write(self._first_line)
            return
        if first_line != self._first_line and self._first_line.startswith(first_line):
            self._file.truncate(0)  # killed in its first line
            self._file.write(self._first_line)
            return
        try:
            recorded_length = parse_header(parse_json(first_line))
        except ValueError as error:
            raise ConfigError(f"{self._path} holds no confidence records: {error}") from error
        if recorded_length != self.draft_length:
            raise ConfigError(f"{self._path} has records of draft_length {recorded_length}, not {self.draft_length}")
        self._cut_last_line()

    def _cut_last_line(self) -> None:
        end = size = self._file.seek(0, os.SEEK_END)
        while end > 0:
            start = max(0, end - 4096)
            self._file.seek(start)
            at = self._file.read(end - start).rfind(b"\n")
            if at >= 0:
                end = start + at + 1
                break
            end = start
        if end < size:
            logger.warning("%s: a last line that was cut off is removed", self._path)
            self._file.truncate(end)

    def _write(self, data: bytes) -> bool:
        """Whether all of it was written."""
        try:
            with _locked(self._file):  # who begins now would take a line that is half written for one that was cut off
                while data:
                    data = data[self._file.write(data) :]
        except OSError as error:
            logger.warning("%s: confidences are no longer recorded: %s", self._path, error)
            self._file.close()
        return self.is_recording

    def _check(self, confidences: Any, num_verified: Any, num_accepted: Any) -> None:
        require_array("confidences", confidences, np.float32, num_dimensions=2)
        require_integers("num_verified", num_verified)
        require_integers("num_accepted", num_accepted)
        shape = (len(num_verified), self.draft_length)
        if confidences.shape != shape or len(num_accepted) != len(num_verified):
            raise ValueError(
                f"confidences has shape {confidences.shape} beside {len(num_verified)} num_verified and "
                f"{len(num_accepted)} num_accepted; {shape} and as many are needed"
            )
        is_wrong = (num_accepted < 0) | (num_accepted > num_verified) | (num_verified > self.draft_length)
        if is_wrong.any():
            i = int(is_wrong.argmax())
            raise ValueError(f"row {i} accepted {num_accepted[i]} of {num_verified[i]} of {self.draft_length} drafts")
        # Written so that a NaN fails.
        is_outside = ~((confidences >= 0) & (confidences <= 1))
        is_outside &= np.arange(self.draft_length) < num_verified[:, None]
        if is_outside.any():
            row, draft = np.argwhere(is_outside)[0]
            raise ValueError(f"confidences[{row}][{draft}] is {confidences[row, draft]}; it must be from 0 to 1")


def _line(confidences: list[float], num_accepted: int) -> str:
    """Nine digits give a float32 back exactly."""
    return f"[[{', '.join(f'{value:.9g}' for value in confidences)}], {num_accepted}]\n"


@contextmanager
def _locked(file: IO[bytes]) -> Iterator[None]:
    """Hold the file against other recorders, where the system has such locks."""
    if sys.platform != "win32":
        fcntl.flock(file, fcntl.LOCK_EX)
    try:
        yield
    finally:
        if sys.platform != "win32":
            fcntl.flock(file, fcntl.LOCK_UN)
