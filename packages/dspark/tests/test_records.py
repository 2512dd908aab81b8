"""Confidence records: written while an engine runs, read for calibration."""

import logging
import subprocess
import sys
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from dspark_testing.synthetic import synthetic_records, write_records

from thalweg.dspark import ConfidenceRecorder, ConfidenceRecords, join_records, read_records
from thalweg.interfaces import ConfigError

HEADER = b'{"format": "thalweg-confidence-records", "version": 1, "draft_length": 2}\n'
UNKNOWN = np.nan


def row(*confidences: float) -> Any:
    return np.array([confidences], np.float32)


def integers(*values: int) -> Any:
    return np.array(values, np.int32)


@pytest.fixture
def path(tmp_path: Path) -> Path:
    return tmp_path / "records.jsonl"


def test_what_was_recorded_is_read_to_the_last_bit(path: Path) -> None:
    recorded = synthetic_records(1000)
    read = read_records(write_records(path, recorded))
    assert (read.confidences.astype(np.float32) == recorded.confidences.astype(np.float32)).all()
    assert (read.num_accepted == recorded.num_accepted).all()


def test_the_format_is_one_json_line_per_verified_row(path: Path) -> None:
    with ConfidenceRecorder(path, 2) as recorder:
        recorder.add(np.array([[0.5, 0.25], [1, 0], [0.5, 0.5]], np.float32), integers(2, 1, 0), integers(2, 0, 0))
        assert recorder.num_records == 2
    assert path.read_bytes() == HEADER + b"[[0.5, 0.25], 2]\n[[1], 0]\n"
    records = read_records(path)
    np.testing.assert_array_equal(records.confidences, [[0.5, 0.25], [1.0, UNKNOWN]])
    assert records.num_verified.tolist() == [2, 1]
    assert records.draft_length == 2


def test_places_that_were_not_verified_may_hold_anything(path: Path) -> None:
    with ConfidenceRecorder(path, 2) as recorder:
        recorder.add(np.array([[0.5, UNKNOWN], [7.0, -1.0]], np.float32), integers(1, 0), integers(1, 0))
    assert read_records(path).num_accepted.tolist() == [1]


def test_every_call_is_on_disk_when_it_returns(path: Path) -> None:
    recorder = ConfidenceRecorder(path, 2)
    for count in range(1, 4):
        recorder.add(row(0.5, 0.5), integers(2), integers(1))
        assert len(read_records(path).num_accepted) == count
    recorder.close()
    recorder.close()
    assert not recorder.is_recording


def test_a_later_run_goes_on_behind_the_records_of_the_earlier(path: Path) -> None:
    for accepted in (0, 1, 2):
        with ConfidenceRecorder(path, 2) as recorder:
            recorder.add(row(0.5, 0.5), integers(2), integers(accepted))
    assert read_records(path).num_accepted.tolist() == [0, 1, 2]


@pytest.mark.parametrize("length", [0, 1, 40, len(HEADER) - 1])
def test_a_file_cut_off_in_its_first_line_is_begun_again(path: Path, length: int) -> None:
    path.write_bytes(HEADER[:length])
    with ConfidenceRecorder(path, 2) as recorder:
        recorder.add(row(0.5, 0.5), integers(2), integers(1))
    assert path.read_bytes() == HEADER + b"[[0.5, 0.5], 1]\n"


@pytest.mark.parametrize("rest", [b"[", b"[[0.5, 0.5], 1", b"[" + b"0" * 10_000])
def test_a_last_line_that_was_cut_off_is_left_out_and_removed_by_the_next_run(
    path: Path, rest: bytes, caplog: pytest.LogCaptureFixture
) -> None:
    whole = HEADER + b"[[0.5, 0.5], 2]\n"
    path.write_bytes(whole + rest)
    assert read_records(path).num_accepted.tolist() == [2]
    assert "line 3 was cut off and is left out" in caplog.text
    assert path.read_bytes() == whole + rest
    with ConfidenceRecorder(path, 2) as recorder:
        recorder.add(row(0.5, 0.5), integers(2), integers(0))
    assert path.read_bytes() == whole + b"[[0.5, 0.5], 0]\n"


OTHER_FILES = {
    "holds no confidence records: its first line is {'a': 1}": b'{"a": 1}\n',
    "holds no confidence records: its first line is": b"[[0.5, 0.5], 1]\n",
    "holds no confidence records: Expecting value": b"hello\n",
    "holds no confidence records: 'utf-8'": b"\x93NUMPY\x01\x00",
    "its version is 2; version 1 is understood": HEADER.replace(b"1,", b"2,"),
    "its version is True": HEADER.replace(b"1,", b"true,"),
    "draft_length is 0; an integer from 1 to 1024": HEADER.replace(b"2}", b"0}"),
    "draft_length is 9999999; an integer from 1 to 1024": HEADER.replace(b"2}", b"9999999}"),
    "draft_length is '2'": HEADER.replace(b"2}", b'"2"}'),
    "draft_length is None": HEADER.replace(b', "draft_length": 2', b""),
    "holds no confidence records: NaN": HEADER.replace(b"2}", b"NaN}"),
}


@pytest.mark.parametrize("message", OTHER_FILES)
def test_a_file_of_something_else_is_refused_and_left_as_it_is(path: Path, message: str) -> None:
    path.write_bytes(OTHER_FILES[message])
    with pytest.raises(ConfigError, match=message):
        read_records(path)
    with pytest.raises(ConfigError, match=message):
        ConfidenceRecorder(path, 2)
    assert path.read_bytes() == OTHER_FILES[message]


def test_an_empty_file_has_no_records_in_it(path: Path) -> None:
    path.touch()
    with pytest.raises(ConfigError, match="holds no confidence records"):
        read_records(path)


def test_records_of_another_draft_length_are_not_mixed_in(path: Path) -> None:
    path.write_bytes(HEADER)
    with pytest.raises(ConfigError, match="has records of draft_length 2, not 5"):
        ConfidenceRecorder(path, 5)
    assert path.read_bytes() == HEADER


DAMAGED_LINES = {
    "it is 3; ": b"3",
    "Expecting value": b"",
    "Expecting": b"[[0.5, 0.5, 1]",
    "it is {'c': 1}": b'{"c": 1}',
    r"it is \[\[0.5\]\]; ": b"[[0.5]]",
    r"it is \[\[0.5\], 1.0\]": b"[[0.5], 1.0]",
    r"it is \[\[0.5\], True\]": b"[[0.5], true]",
    r"it is \['0.5', 1\]": b'["0.5", 1]',
    "it has 0 confidences; 1 to 2 are needed": b"[[], 0]",
    "it has 3 confidences; 1 to 2 are needed": b"[[0.5, 0.5, 0.5], 0]",
    "confidence 1 is 1.5; a number from 0 to 1": b"[[0.5, 1.5], 0]",
    "confidence 0 is -0.1; ": b"[[-0.1, 0.5], 0]",
    "confidence 0 is '0.5'; ": b'[["0.5", 0.5], 0]',
    "confidence 0 is None; ": b"[[null, 0.5], 0]",
    "confidence 0 is True; ": b"[[true, 0.5], 0]",
    "NaN is no number in JSON": b"[[NaN, 0.5], 0]",
    "it has 2 accepted drafts of 1": b"[[0.5], 2]",
    "it has -1 accepted drafts of 1": b"[[0.5], -1]",
    "'utf-8' codec": b"[[0.5], \xff]",
    "it is longer than 1048575 bytes": bytes(1 << 21),
}


@pytest.mark.parametrize("message", DAMAGED_LINES)
def test_a_damaged_line_is_refused_by_its_number(path: Path, message: str) -> None:
    path.write_bytes(HEADER + b"[[0.5], 1]\n" + DAMAGED_LINES[message] + b"\n[[0.5], 1]\n")
    with pytest.raises(ConfigError, match=f"records.jsonl, line 3: .*{message}"):
        read_records(path)


def test_a_file_that_cannot_be_opened_is_refused(tmp_path: Path) -> None:
    with pytest.raises(ConfigError, match=r"missing\.jsonl: No such file"):
        read_records(tmp_path / "missing.jsonl")
    for name in (tmp_path, tmp_path / "no" / "folder.jsonl"):
        with pytest.raises(ConfigError, match=r": (Is a directory|No such file)"):
            ConfidenceRecorder(name, 2)


DISK_FULL = """
import resource, sys
import numpy as np
from thalweg.dspark import ConfidenceRecorder
recorder = ConfidenceRecorder(sys.argv[1], 2)
resource.setrlimit(resource.RLIMIT_FSIZE, (100, 100))
half, two, one = np.full((1, 2), 0.5, np.float32), np.array([2]), np.array([1])
for _ in range(5):
    recorder.add(half, two, one)
print(recorder.is_recording, recorder.num_records)
"""


def test_a_full_disk_ends_the_recording_and_nothing_else(path: Path) -> None:
    """The limit is in the middle of the second record."""
    result = subprocess.run([sys.executable, "-c", DISK_FULL, path], capture_output=True, text=True, check=True)
    assert result.stdout.split() == ["False", "1"]
    assert result.stderr.count("confidences are no longer recorded: [Errno 27] File too large") == 1
    assert path.stat().st_size == 100
    assert read_records(path).num_accepted.tolist() == [1]


WRITER = """
import sys
import numpy as np
from thalweg.dspark import ConfidenceRecorder
rows = np.full((50, 2), float(sys.argv[2]), np.float32)
for _ in range(20):
    with ConfidenceRecorder(sys.argv[1], 2) as recorder:
        for _ in range(5):
            recorder.add(rows, np.full(50, 2), np.full(50, 1))
"""


def test_processes_that_share_a_file_lose_and_mix_up_nothing(path: Path) -> None:
    commands = [[sys.executable, "-c", WRITER, path, confidence] for confidence in ("0.125", "0.25", "0.5")]
    writers = [subprocess.Popen(command, stderr=subprocess.PIPE, text=True) for command in commands]
    assert [writer.communicate(timeout=60)[1] for writer in writers] == [""] * 3
    confidences = read_records(path).confidences
    assert [int((confidences == value).all(axis=1).sum()) for value in (0.125, 0.25, 0.5)] == [5000] * 3


BAD_ROWS: dict[str, tuple[Any, ...]] = {
    "confidences is a list": ([[0.5, 0.5]], integers(2), integers(1)),
    "confidences is a float64 array": (row(0.5, 0.5).astype(np.float64), integers(2), integers(1)),
    "num_verified is a float64 array": (row(0.5, 0.5), np.array([2.0]), integers(1)),
    "num_accepted is a int": (row(0.5, 0.5), integers(2), 1),
    r"confidences has shape \(1, 3\)": (row(0.5, 0.5, 0.5), integers(2), integers(1)),
    "beside 2 num_verified and 1 num_accepted": (row(0.5, 0.5), integers(2, 2), integers(1)),
    "row 0 accepted 2 of 1 of 2 drafts": (row(0.5, 0.5), integers(1), integers(2)),
    "row 0 accepted 1 of 3 of 2 drafts": (row(0.5, 0.5), integers(3), integers(1)),
    "row 0 accepted -1 of 2 of 2 drafts": (row(0.5, 0.5), integers(2), integers(-1)),
    r"confidences\[0\]\[1\] is nan; it must be from 0 to 1": (row(0.5, UNKNOWN), integers(2), integers(1)),
    r"confidences\[0\]\[0\] is 1.5": (row(1.5, 0.5), integers(2), integers(1)),
    r"confidences\[0\]\[1\] is -inf": (row(0.5, -np.inf), integers(2), integers(1)),
}


@pytest.mark.parametrize("message", BAD_ROWS)
def test_bad_rows_are_refused_and_leave_no_record(path: Path, message: str) -> None:
    with ConfidenceRecorder(path, 2) as recorder:
        with pytest.raises(ValueError, match=message):
            recorder.add(*BAD_ROWS[message])
        assert recorder.num_records == 0
    assert path.read_bytes() == HEADER


@pytest.mark.parametrize("draft_length", [0, -1, 1025, True, 2.0, "3", None])
def test_a_draft_length_below_one_is_refused_and_makes_no_file(path: Path, draft_length: Any) -> None:
    with pytest.raises(ConfigError, match=r"draft_length is .*; an integer from 1 to 1024 is needed"):
        ConfidenceRecorder(path, draft_length)
    assert not path.exists()


def test_files_of_several_processes_are_joined(tmp_path: Path) -> None:
    parts = [synthetic_records(10, seed=seed) for seed in range(3)]
    whole = join_records([read_records(write_records(tmp_path / f"{i}", part)) for i, part in enumerate(parts)])
    assert whole.num_accepted.tolist() == [count for part in parts for count in part.num_accepted]
    with pytest.raises(ConfigError, match=r"draft lengths \[3, 5\]; exactly one is needed"):
        join_records([synthetic_records(1), synthetic_records(1, (1.0, 1.0, 1.0))])
    with pytest.raises(ConfigError, match=r"draft lengths \[\]"):
        join_records([])


BAD_RECORDS: dict[str, tuple[Any, Any]] = {
    r"confidences is a list": ([[0.5]], np.array([1])),
    "num_accepted is a float64 array": (np.array([[0.5]]), np.array([1.0])),
    r"confidences has shape \(1, 0\)": (np.empty((1, 0)), np.array([0])),
    "num_accepted 2 entries": (np.array([[0.5]]), np.array([1, 0])),
    r"confidences\[1\] is \[1.5\]; numbers from 0 to 1": (np.array([[0.5], [1.5]]), np.array([1, 0])),
    r"confidences\[0\] is \[nan, 0.5\]; .*then NaN": (np.array([[UNKNOWN, 0.5]]), np.array([0])),
    r"num_accepted\[0\] is 2; 0 to 1 are possible": (np.array([[0.5, UNKNOWN]]), np.array([2])),
    r"num_accepted\[0\] is -1; 0 to 1 are possible": (np.array([[0.5, UNKNOWN]]), np.array([-1])),
}


@pytest.mark.parametrize("message", BAD_RECORDS)
def test_records_that_cannot_be_are_refused(message: str) -> None:
    with pytest.raises(ValueError, match=message):
        ConfidenceRecords(*BAD_RECORDS[message])


def test_nothing_is_logged_while_all_is_well(path: Path, caplog: pytest.LogCaptureFixture) -> None:
    caplog.set_level(logging.INFO)
    read_records(write_records(path, synthetic_records(10)))
    write_records(path, synthetic_records(10))
    assert caplog.records == []
