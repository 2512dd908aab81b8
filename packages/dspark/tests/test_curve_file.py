"""A step-time curve as a file, and on other sizes than measured."""

import json
from pathlib import Path
from typing import Any

import pytest

from thalweg.dspark import StepTimeCurve, graph_sizes, read_curve, write_curve
from thalweg.interfaces import ConfigError


def test_what_was_written_is_read_to_the_last_bit(tmp_path: Path) -> None:
    curve = StepTimeCurve([(1, 0.1), (2, 1 / 3), (1 << 20, 1e300)])
    write_curve(tmp_path / "curve.json", curve)
    assert list(read_curve(tmp_path / "curve.json")) == list(curve)
    assert [path.name for path in tmp_path.iterdir()] == ["curve.json"]


def test_times_without_a_fraction_are_read(tmp_path: Path) -> None:
    (tmp_path / "curve.json").write_text("[[1, 3], [8, 4.5]]")
    assert list(read_curve(tmp_path / "curve.json")) == [(1, 3.0), (8, 4.5)]


BAD_CURVES: dict[str, Any] = {
    "the curve is {'1': 2.0}; a list": {"1": 2.0},
    "the curve is None": None,
    "points is empty": [],
    r"points\[1\] is 3; an integer size": [[1, 1.0], 3],
    r"points\[0\] is \[1\]": [[1]],
    r"points\[0\] is \[1, 2, 3\]": [[1, 2, 3]],
    r"points\[0\] is \[1\.0, 2\.0\]": [[1.0, 2.0]],
    r"points\[0\] is \[True, 2\.0\]": [[True, 2.0]],
    r"points\[0\] is \['1', 2\.0\]": [["1", 2.0]],
    r"points\[0\] is \[1, '2'\]": [[1, "2"]],
    r"points\[0\] is \[1, None\]": [[1, None]],
    r"points\[0\] is \[1, 1000.*000\]": [[1, 10**400]],
    r"points\[0\] has size 0": [[0, 1.0]],
    r"points\[0\] takes -1\.0 ms": [[1, -1]],
    r"points\[0\] takes 0\.0 ms": [[1, 0]],
    r"points\[1\] has size 1 after 1": [[1, 1.0], [1, 2.0]],
    r"points\[0\] has size 1048577; at most 1048576": [[(1 << 20) + 1, 1.0]],
}


@pytest.mark.parametrize("message", BAD_CURVES)
def test_a_bad_curve_is_refused_by_file_and_point(tmp_path: Path, message: str) -> None:
    path = tmp_path / "curve.json"
    path.write_text(json.dumps(BAD_CURVES[message]))
    with pytest.raises(ConfigError, match=rf"curve\.json: {message}"):
        read_curve(path)


@pytest.mark.parametrize("content", [b"", b"[[1, 1.0]", b"[[1, NaN]]", b"[[1, Infinity]]", b"\xff", b"[" * 100_000])
def test_a_file_that_is_no_json_is_refused(tmp_path: Path, content: bytes) -> None:
    path = tmp_path / "curve.json"
    path.write_bytes(content)
    with pytest.raises(ConfigError, match=r"curve\.json is not JSON"):
        read_curve(path)


def test_a_file_that_cannot_be_read_or_written_is_an_error(tmp_path: Path) -> None:
    with pytest.raises(ConfigError, match=r"missing\.json: No such file"):
        read_curve(tmp_path / "missing.json")
    with pytest.raises(ConfigError, match="Is a directory"):
        read_curve(tmp_path)
    with pytest.raises(OSError, match="No such file"):
        write_curve(tmp_path / "no" / "curve.json", StepTimeCurve([(1, 1.0)]))
    assert list(tmp_path.iterdir()) == []


def test_other_sizes_lie_on_straight_lines_and_flat_before_the_first() -> None:
    curve = StepTimeCurve([(4, 10.0), (8, 12.0), (16, 20.0)])
    assert list(curve.interpolated([1, 4, 6, 8, 10, 16])) == [
        (1, 10.0),
        (4, 10.0),
        (6, 11.0),
        (8, 12.0),
        (10, 14.0),
        (16, 20.0),
    ]
    assert curve.interpolated(graph_sizes(16)).sizes == [1, 2, 4, 8, 16]


def test_no_time_is_invented_beyond_the_last_point() -> None:
    with pytest.raises(ConfigError, match=r"sizes\[1\] is 17; the curve ends at 16"):
        StepTimeCurve([(4, 10.0), (16, 20.0)]).interpolated([8, 17])
    with pytest.raises(ConfigError, match=r"points\[1\] has size 4 after 8"):
        StepTimeCurve([(4, 10.0), (16, 20.0)]).interpolated([8, 4])
