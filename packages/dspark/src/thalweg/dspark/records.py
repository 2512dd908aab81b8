"""Reads files of confidence records."""

from __future__ import annotations

import logging
import os
from dataclasses import dataclass
from typing import Any, BinaryIO

import numpy as np
from numpy.typing import NDArray

from thalweg.dspark._checks import require_array
from thalweg.dspark._json import is_integer, is_number, parse_json
from thalweg.dspark.record_format import MAX_HEADER_BYTES, MAX_LINE_BYTES, parse_header
from thalweg.interfaces import ConfigError, shown

logger = logging.getLogger(__name__)


@dataclass(frozen=True, slots=True)
class ConfidenceRecords:
    """R verified rows of up to G drafts. Raises ConfigError, naming the row, for what cannot be such rows."""

    confidences: NDArray[np.float64]
    """[R, G]; NaN for drafts that were not verified."""
    num_accepted: NDArray[np.int64]
    """[R]"""

    def __post_init__(self) -> None:
        require_array("confidences", self.confidences, np.float64, num_dimensions=2)
        require_array("num_accepted", self.num_accepted, np.int64, num_dimensions=1)
        num_rows, draft_length = self.confidences.shape
        if len(self.num_accepted) != num_rows or draft_length < 1:
            raise ConfigError(
                f"confidences has shape {self.confidences.shape} and num_accepted {len(self.num_accepted)} entries; "
                "[R, G] with G of at least 1, and R are needed"
            )
        is_verified = ~np.isnan(self.confidences)
        is_wrong = is_verified & ~((self.confidences >= 0) & (self.confidences <= 1))
        is_wrong[:, 1:] |= is_verified[:, 1:] & ~is_verified[:, :-1]
        if is_wrong.any():
            row = int(is_wrong.any(axis=1).argmax())
            found = shown(self.confidences[row].tolist())
            raise ConfigError(f"confidences[{row}] is {found}; numbers from 0 to 1, then NaN are needed")
        is_wrong_count = (self.num_accepted < 0) | (self.num_accepted > self.num_verified)
        if is_wrong_count.any():
            row = int(is_wrong_count.argmax())
            raise ConfigError(
                f"num_accepted[{row}] is {self.num_accepted[row]}; 0 to {self.num_verified[row]} are possible"
            )

    @property
    def draft_length(self) -> int:
        return int(self.confidences.shape[1])

    @property
    def num_verified(self) -> NDArray[np.int64]:
        """[R] drafts verified."""
        counts: NDArray[np.int64] = (~np.isnan(self.confidences)).sum(axis=1)
        return counts


def read_records(path: str | os.PathLike[str]) -> ConfidenceRecords:
    """All records of a file. A last line that was cut off is left out with a warning.

    Raises ConfigError, naming the line, for a file that cannot be read, is something else or is damaged.
    """
    try:
        with open(path, "rb") as file:
            return _read(os.fspath(path), file)
    except OSError as error:
        raise ConfigError(f"{os.fspath(path)}: {error.strerror or error}") from error


def join_records(parts: list[ConfidenceRecords]) -> ConfidenceRecords:
    """The records of several files. Raises ConfigError for none and for different draft lengths."""
    lengths = sorted({part.draft_length for part in parts})
    if len(lengths) != 1:
        raise ConfigError(f"the records have draft lengths {lengths}; exactly one is needed")
    return ConfidenceRecords(
        np.concatenate([part.confidences for part in parts]), np.concatenate([part.num_accepted for part in parts])
    )


def _read(name: str, file: BinaryIO) -> ConfidenceRecords:
    try:
        draft_length = parse_header(parse_json(file.readline(MAX_HEADER_BYTES)))
    except ValueError as error:
        raise ConfigError(f"{name} holds no confidence records: {error}") from error
    rows, num_accepted = [], []
    for number, line in enumerate(iter(lambda: file.readline(MAX_LINE_BYTES), b""), start=2):
        if len(line) == MAX_LINE_BYTES:
            raise ConfigError(f"{name}, line {number}: it is longer than {MAX_LINE_BYTES - 1} bytes")
        if not line.endswith(b"\n"):
            logger.warning("%s: line %d was cut off and is left out", name, number)
            break
        try:
            row, accepted = _parse_row(parse_json(line), draft_length)
        except ValueError as error:
            raise ConfigError(f"{name}, line {number}: {error}") from error
        rows.append(row + [np.nan] * (draft_length - len(row)))
        num_accepted.append(accepted)
    confidences = np.array(rows, np.float64).reshape(len(rows), draft_length)
    return ConfidenceRecords(confidences, np.array(num_accepted, np.int64))


def _parse_row(value: Any, draft_length: int) -> tuple[list[float], int]:
    if not (isinstance(value, list) and len(value) == 2 and isinstance(value[0], list) and is_integer(value[1])):
        raise ConfigError(f"it is {shown(value)}; [[confidence, ...], accepted drafts] is needed")
    confidences, accepted = value
    if not 1 <= len(confidences) <= draft_length:
        raise ConfigError(f"it has {len(confidences)} confidences; 1 to {draft_length} are needed")
    for j, confidence in enumerate(confidences):
        if not (is_number(confidence) and 0 <= confidence <= 1):
            raise ConfigError(f"confidence {j} is {shown(confidence)}; a number from 0 to 1 is needed")
    if not 0 <= accepted <= len(confidences):
        raise ConfigError(f"it has {accepted} accepted drafts of {len(confidences)}")
    return [float(confidence) for confidence in confidences], accepted
