"""Acceptance counts as a file: how often each draft position was verified and accepted, per request or in total."""

from __future__ import annotations

import json
import os
from collections.abc import Sequence
from itertools import accumulate, pairwise
from pathlib import Path
from typing import Any

import numpy as np
from numpy.typing import NDArray

from thalweg.dspark._json import is_integer, read_json, write_whole
from thalweg.dspark.acceptance import AcceptanceStatistics
from thalweg.interfaces import ConfigError, shown

FORMAT = "thalweg-acceptance"
VERSION = 1


def write_acceptance(path: str | os.PathLike[str], requests: Sequence[AcceptanceStatistics]) -> None:
    """Write the counts of each request, or one entry for all of them. Raises OSError, ConfigError for no entry."""
    if not requests:
        raise ConfigError("there are no requests; at least one entry of counts is needed")
    entries = [
        {"verified": counts.verified_by_position.tolist(), "accepted": counts.accepted_by_position.tolist()}
        for counts in requests
    ]
    write_whole(Path(path), json.dumps({"format": FORMAT, "version": VERSION, "requests": entries}) + "\n")


def read_survival(path: str | os.PathLike[str]) -> NDArray[np.float64]:
    """[R, G] for each entry of the file, the share of its steps in which a draft and all before it were accepted.

    0 where a position was never verified. Raises ConfigError, naming the entry, for a file that cannot be read, is
    something else, or has counts that no fixed-length verification gives.
    """
    value = read_json(path)
    try:
        return _survival(value)
    except ConfigError as error:
        raise ConfigError(f"{os.fspath(path)}: {error}") from error


def _survival(value: Any) -> NDArray[np.float64]:
    if not isinstance(value, dict) or value.get("format") != FORMAT:
        raise ConfigError(f"it is {shown(value)}; an object with format {FORMAT!r} is needed")
    if not is_integer(value.get("version")) or value["version"] != VERSION:
        raise ConfigError(f"its version is {shown(value.get('version'))}; version {VERSION} is understood")
    requests = value.get("requests")
    if not isinstance(requests, list) or not requests:
        raise ConfigError(f"requests is {shown(requests)}; a list of at least one entry is needed")
    rows = [_row(i, entry) for i, entry in enumerate(requests)]
    for i, row in enumerate(rows):
        if len(row) != len(rows[0]):
            raise ConfigError(f"requests[{i}] has {len(row)} draft positions and requests[0] {len(rows[0])}")
    return np.array(rows)


def _row(i: int, entry: Any) -> list[float]:
    verified, accepted = (_counts(i, name, entry) for name in ("verified", "accepted"))
    if len(verified) != len(accepted) or any(a > v for a, v in zip(accepted, verified, strict=True)):
        raise ConfigError(
            f"requests[{i}] has accepted {shown(accepted)} of verified {shown(verified)}; as many counts, and no more "
            "accepted than verified are needed"
        )
    if not verified[0]:
        raise ConfigError(f"requests[{i}] verified nothing; at least one step is needed")
    shares = [a / v if v else 0.0 for a, v in zip(accepted, verified, strict=True)]
    return list(accumulate(shares, min))


def _counts(i: int, name: str, entry: Any) -> list[int]:
    counts = entry.get(name) if isinstance(entry, dict) else None
    if not isinstance(counts, list) or not counts or not all(is_integer(count) and count >= 0 for count in counts):
        raise ConfigError(f"requests[{i}] has {name} {shown(counts)}; a count for each draft position is needed")
    if any(later > earlier for earlier, later in pairwise(counts)):
        raise ConfigError(f"requests[{i}] has {name} {shown(counts)}; counts never increase from draft to draft")
    return counts
