"""Temperatures given by hand and in calibration files."""

import json
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from thalweg.dspark import parse_temperatures, read_temperatures
from thalweg.interfaces import ConfigError


@pytest.mark.parametrize(
    ("value", "expected"),
    [
        ("", (1.0, 1.0, 1.0)),
        ((), (1.0, 1.0, 1.0)),
        ("0.5", (0.5, 0.5, 0.5)),
        (2, (2.0, 2.0, 2.0)),
        ("1, 0.5,2e0", (1.0, 0.5, 2.0)),
        ([1, 0.5, 2], (1.0, 0.5, 2.0)),
        (np.array([1, 0.5, 2]), (1.0, 0.5, 2.0)),
        ("1e-9,1e-5,1", (1e-5, 1e-5, 1.0)),
    ],
)
def test_one_temperature_or_one_per_draft(value: Any, expected: tuple[float, ...]) -> None:
    assert parse_temperatures(value, 3) == expected


@pytest.mark.parametrize("value", ["1,1", "1,1,1,1", [1.0, 1.0], range(1, 5)])
def test_another_count_is_refused(value: Any) -> None:
    with pytest.raises(ConfigError, match=r"there are [24] temperatures; 1 or 3, one per draft, are needed"):
        parse_temperatures(value, 3)


@pytest.mark.parametrize(
    "bad", ["0", "-1", "nan", "inf", "hot", " ", 0, -0.5, float("nan"), float("inf"), None, True, b"1", 10**400, {}]
)
def test_what_is_no_positive_number_is_refused_by_its_place(bad: Any) -> None:
    value = f"1,{bad},1" if isinstance(bad, str) else [1, bad, 1]
    with pytest.raises(ConfigError, match=r"temperatures\[1\] is .*; a finite number above 0 is needed"):
        parse_temperatures(value, 3)


@pytest.mark.parametrize("bad", [None, True, b"1", {1: 2.0}, object()])
def test_what_is_neither_text_nor_numbers_is_refused(bad: Any) -> None:
    with pytest.raises(ConfigError, match=r"temperatures\[0\] is"):
        parse_temperatures(bad, 1)


@pytest.mark.parametrize("draft_length", [0, -1, 1025, True, 2.0, "3", None])
def test_a_draft_length_below_one_is_refused(draft_length: Any) -> None:
    with pytest.raises(ConfigError, match=r"draft_length is .*; an integer from 1 to 1024 is needed"):
        parse_temperatures("1", draft_length)


def test_a_file_of_others_with_temperatures_alone_is_read(tmp_path: Path) -> None:
    path = tmp_path / "temperatures.json"
    path.write_text('{"temperatures": [1.5, 1, 1e-7], "more": null}')
    assert read_temperatures(path, 3) == (1.5, 1.0, 1e-5)


BAD_FILES: dict[str, Any] = {
    "is 3; an object with a list of temperatures": 3,
    r"is \{\}; an object with a list of temperatures": {},
    "an object with a list of temperatures": {"temperatures": "1,1,1"},
    r"is \{'temperatures': \[1, '1', 1\]\}; an object": {"temperatures": [1, "1", 1]},
    "an object with a list of temperatures is": {"temperatures": [1, True, 1]},
    "has 1 temperatures; 3 are needed": {"temperatures": [1]},
    "has 0 temperatures; 3 are needed": {"temperatures": []},
    r"temperatures.json: temperatures\[2\] is 0;": {"temperatures": [1, 1, 0]},
}


@pytest.mark.parametrize("message", BAD_FILES)
def test_a_file_of_something_else_is_refused(tmp_path: Path, message: str) -> None:
    path = tmp_path / "temperatures.json"
    path.write_text(json.dumps(BAD_FILES[message]))
    with pytest.raises(ConfigError, match=message):
        read_temperatures(path, 3)


@pytest.mark.parametrize("text", ["", "{", "[1, NaN]", "\x00", '{"temperatures": [1, 1, Infinity]}'])
def test_a_file_that_is_no_json_is_refused(tmp_path: Path, text: str) -> None:
    path = tmp_path / "temperatures.json"
    path.write_text(text)
    with pytest.raises(ConfigError, match=r"temperatures\.json is not JSON"):
        read_temperatures(path, 3)


def test_a_file_that_is_not_there_is_refused(tmp_path: Path) -> None:
    with pytest.raises(ConfigError, match=r"missing\.json: No such file"):
        read_temperatures(tmp_path / "missing.json", 3)
