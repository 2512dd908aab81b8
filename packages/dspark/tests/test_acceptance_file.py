"""Acceptance counts as a file."""

import json
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from thalweg.dspark import AcceptanceStatistics, read_survival, write_acceptance
from thalweg.interfaces import ConfigError


def counts(num_verified: list[int], num_accepted: list[int], draft_length: int = 3) -> AcceptanceStatistics:
    statistics = AcceptanceStatistics(draft_length)
    statistics.add(np.array(num_verified), np.array(num_accepted))
    return statistics


def test_what_was_counted_comes_back_as_survival(tmp_path: Path) -> None:
    path = tmp_path / "acceptance.json"
    write_acceptance(path, [counts([3, 3, 3, 3], [3, 1, 0, 2]), counts([2, 2], [2, 1])])
    assert read_survival(path).tolist() == [[0.75, 0.5, 0.25], [1.0, 0.5, 0.0]]
    assert sorted(file.name for file in tmp_path.iterdir()) == ["acceptance.json"]


def test_survival_never_increases_where_fewer_rows_verified_a_later_draft(tmp_path: Path) -> None:
    path = tmp_path / "acceptance.json"
    write_acceptance(path, [counts([3, 1, 1, 1], [3, 0, 0, 0])])
    assert read_survival(path).tolist() == [[0.25, 0.25, 0.25]]


def test_no_counts_are_not_written(tmp_path: Path) -> None:
    with pytest.raises(ConfigError, match="there are no requests"):
        write_acceptance(tmp_path / "acceptance.json", [])
    assert list(tmp_path.iterdir()) == []


def of(*requests: Any, version: Any = 1) -> dict[str, Any]:
    return {"format": "thalweg-acceptance", "version": version, "requests": list(requests)}


GOOD = {"verified": [4, 4], "accepted": [3, 2]}
BAD_VALUES: dict[str, Any] = {
    r"it is \[\]; an object with format 'thalweg-acceptance'": [],
    "it is {'format': 'thalweg-confidence-records'": {"format": "thalweg-confidence-records"},
    "its version is 2; version 1 is understood": of(GOOD, version=2),
    "its version is True": of(GOOD, version=True),
    "its version is 1.0": of(GOOD, version=1.0),
    "requests is None": {"format": "thalweg-acceptance", "version": 1},
    r"requests is \[\]": of(),
    r"requests\[1\] has verified None": of(GOOD, 3),
    r"requests\[0\] has accepted None": of({"verified": [4]}),
    r"requests\[0\] has verified \[\]": of({"verified": [], "accepted": []}),
    r"requests\[0\] has verified \[4, -1\]": of({"verified": [4, -1], "accepted": [3, 2]}),
    r"requests\[0\] has accepted \[3, 2\.5\]": of({"verified": [4, 4], "accepted": [3, 2.5]}),
    r"requests\[0\] has accepted \[3, True\]": of({"verified": [4, 4], "accepted": [3, True]}),
    r"requests\[0\] has accepted \[2, 3\]; counts never increase": of({"verified": [4, 4], "accepted": [2, 3]}),
    r"requests\[0\] has verified \[4, 5\]; counts never increase": of({"verified": [4, 5], "accepted": [3, 2]}),
    r"accepted \[3\] of verified \[4, 4\]": of({"verified": [4, 4], "accepted": [3]}),
    r"accepted \[5, 2\] of verified \[4, 4\]": of({"verified": [4, 4], "accepted": [5, 2]}),
    r"requests\[1\] has 1 draft positions and requests\[0\] 2": of(GOOD, {"verified": [4], "accepted": [3]}),
    r"requests\[0\] verified nothing": of({"verified": [0, 0], "accepted": [0, 0]}),
}


@pytest.mark.parametrize("message", BAD_VALUES)
def test_a_file_of_something_else_is_refused(tmp_path: Path, message: str) -> None:
    path = tmp_path / "acceptance.json"
    path.write_text(json.dumps(BAD_VALUES[message]))
    with pytest.raises(ConfigError, match=rf"acceptance\.json: .*{message}"):
        read_survival(path)


def test_a_file_that_was_cut_off_or_is_missing_is_refused(tmp_path: Path) -> None:
    path = tmp_path / "acceptance.json"
    path.write_text(json.dumps(of(GOOD))[:-2])
    with pytest.raises(ConfigError, match=r"acceptance\.json is not JSON"):
        read_survival(path)
    with pytest.raises(ConfigError, match="No such file"):
        read_survival(tmp_path / "missing.json")


def test_counts_larger_than_any_array_holds_are_shares_all_the_same(tmp_path: Path) -> None:
    path = tmp_path / "acceptance.json"
    path.write_text(json.dumps(of({"verified": [10**400], "accepted": [5 * 10**399]})))
    assert read_survival(path).tolist() == [[0.5]]
