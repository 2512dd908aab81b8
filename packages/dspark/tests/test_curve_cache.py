"""The step-time curve cache: what it finds, what it leaves alone, and what it survives."""

import errno
import json
import logging
import os
import subprocess
import sys
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest

from thalweg.dspark import CurveCache, CurveKey, StepTimeCurve
from thalweg.dspark.curve_cache import GRACE_S
from thalweg.dspark.curve_key import canonical_json, digest_of
from thalweg.interfaces import ConfigError

EXAMPLE = json.loads((Path(__file__).parent / "golden/perf_cache_key_example.json").read_text())
KEY = CurveKey(
    model="a-model",
    sizes=(1, 2, 4),
    device_name="a device",
    package_version="0.1.0",
    toolchain="torch 2.13.0",
    expert_parallel_size=4,
)
CURVE = StepTimeCurve([(1, 1.5), (2, 1.0 / 3), (4, 7.25)])
OTHER_CURVE = StepTimeCurve([(1, 9.0), (2, 9.0), (4, 9.0)])
NOW_S = 1_800_000_000


class Clock:
    def __init__(self, now_s: float = NOW_S) -> None:
        self.now_s = now_s

    def __call__(self) -> float:
        return self.now_s


@pytest.fixture
def clock() -> Clock:
    return Clock()


@pytest.fixture
def cache(tmp_path: Path, clock: Clock) -> CurveCache:
    return CurveCache(tmp_path / "curves", clock=clock)


def points(curve: StepTimeCurve | None) -> list[tuple[int, float]] | None:
    return None if curve is None else list(curve)


def only_file(directory: Path) -> Path:
    (path,) = directory.iterdir()
    return path


def warnings_of(caplog: pytest.LogCaptureFixture) -> list[str]:
    return [record.getMessage() for record in caplog.records if record.levelno == logging.WARNING]


def test_the_recorded_payload_has_the_recorded_text_and_digest() -> None:
    assert canonical_json(EXAMPLE["payload"]) == EXAMPLE["canonical"]
    assert digest_of(EXAMPLE["payload"]) == EXAMPLE["sha256"]


def test_the_key_holds_the_recorded_entries_and_device_version_and_toolchain() -> None:
    payload = CurveKey("m", tuple(EXAMPLE["payload"]["batch_sizes"]), "d", "v", "t", 64, 1, 64).payload
    ours = {"device_name": "d", "package_version": "v", "toolchain": "t"}
    assert payload == EXAMPLE["payload"] | {"model": "m"} | ours


def test_what_was_stored_is_loaded_to_the_last_bit(cache: CurveCache, tmp_path: Path) -> None:
    assert cache.load(KEY) is None
    cache.store(KEY, CURVE)
    assert points(cache.load(KEY)) == list(CURVE)
    digest, unique, stamp = only_file(tmp_path / "curves").name.split(".")
    assert (digest, len(unique), stamp) == (KEY.digest, 32, str(NOW_S))


@pytest.mark.parametrize(
    "changed",
    [
        {"model": "another"},
        {"sizes": (1, 2, 8)},
        {"device_name": "another"},
        {"package_version": "0.1.1"},
        {"toolchain": "torch 2.14.0"},
        {"data_parallel_size": 2},
        {"context_parallel_size": 2},
        {"expert_parallel_size": 2},
    ],
    ids=lambda changed: next(iter(changed)),
)
def test_another_key_finds_nothing(cache: CurveCache, changed: dict[str, Any]) -> None:
    cache.store(KEY, CURVE)
    assert cache.load(replace(KEY, **changed)) is None


def test_the_newest_of_several_wins(cache: CurveCache, clock: Clock) -> None:
    for age_s, curve in ((300, OTHER_CURVE), (10, CURVE), (200, OTHER_CURVE)):
        clock.now_s = NOW_S - age_s
        cache.store(KEY, curve)
    clock.now_s = NOW_S
    assert points(cache.load(KEY)) == list(CURVE)


def test_a_curve_counts_until_its_time_is_over_and_its_file_stays_a_while_longer(
    cache: CurveCache, clock: Clock, tmp_path: Path
) -> None:
    cache.store(KEY, CURVE)
    clock.now_s = NOW_S + 3600
    assert points(cache.load(KEY)) == list(CURVE)
    clock.now_s = NOW_S + 3601
    assert cache.load(KEY) is None
    clock.now_s = NOW_S + 3600 + GRACE_S
    cache.store(replace(KEY, model="another"), CURVE)
    assert len(list((tmp_path / "curves").glob(f"{KEY.digest}.*"))) == 1
    clock.now_s += 1
    cache.store(replace(KEY, model="another"), CURVE)
    assert list((tmp_path / "curves").glob(f"{KEY.digest}.*")) == []


def test_a_clock_that_goes_back_a_little_costs_nothing_and_much_is_not_trusted(
    cache: CurveCache, clock: Clock, tmp_path: Path
) -> None:
    cache.store(KEY, CURVE)
    clock.now_s = NOW_S - 3600
    assert points(cache.load(KEY)) == list(CURVE)
    clock.now_s = NOW_S - 3601
    assert cache.load(KEY) is None
    cache.store(KEY, OTHER_CURVE)
    assert points(cache.load(KEY)) == list(OTHER_CURVE)
    assert len(list((tmp_path / "curves").iterdir())) == 2
    clock.now_s = NOW_S
    assert points(cache.load(KEY)) == list(CURVE)


def test_a_clock_before_1970_is_no_reason_to_fail(cache: CurveCache, clock: Clock) -> None:
    clock.now_s = -5.0
    cache.store(KEY, CURVE)
    assert points(cache.load(KEY)) == list(CURVE)


DAMAGED = {
    "empty": b"",
    "cut off": b"[[1, 1.0], [2, 1.",
    "no UTF-8": b"\xff\xfe\x00",
    "an object": b'{"1": 1.0}',
    "not pairs": b"[1, 2, 4]",
    "NaN": b"[[1, NaN], [2, 1.0], [4, 1.0]]",
    "infinite": b"[[1, 1e999], [2, 1.0], [4, 1.0]]",
    "negative": b"[[1, -1.0], [2, 1.0], [4, 1.0]]",
    "true": b"[[true, 1.0], [2, 1.0], [4, 1.0]]",
    "text": b'[["1", 1.0], [2, 1.0], [4, 1.0]]',
    "unordered": b"[[2, 1.0], [1, 1.0], [4, 1.0]]",
    "no points": b"[]",
    "too deep": b"[" * 100_000,
    "huge numbers": b"[[" + b"9" * 5000 + b", 1.0]]",
    "other sizes": b"[[1, 1.0], [2, 1.0]]",
    "endless": b" " * ((1 << 24) + 1),
}


@pytest.mark.parametrize("content", DAMAGED.values(), ids=DAMAGED)
def test_a_damaged_file_is_passed_over_with_a_warning(
    cache: CurveCache, clock: Clock, tmp_path: Path, content: bytes, caplog: pytest.LogCaptureFixture
) -> None:
    clock.now_s = NOW_S - 100
    cache.store(KEY, CURVE)
    clock.now_s = NOW_S
    damaged = tmp_path / "curves" / f"{KEY.digest}.{'0' * 32}.{NOW_S}"
    damaged.write_bytes(content)
    assert points(cache.load(KEY)) == list(CURVE)
    (warning,) = warnings_of(caplog)
    assert str(damaged) in warning
    assert damaged.read_bytes() == content


FOREIGN = [
    "notes.txt",
    f"{'a' * 64}.json",
    f"{'a' * 64}.{'b' * 32}.{NOW_S - 10**8}.bak",
    f"{'A' * 64}.{'b' * 32}.{NOW_S - 10**8}",
    f"{'a' * 64}.{'b' * 31}.{NOW_S - 10**8}",
    f"{'a' * 64}.{'b' * 32}.-{NOW_S}",
    f"{'a' * 64}.{'b' * 32}.1{'0' * 12}",
    f"{'a' * 64}.{'b' * 32}.\u0663",
    f"x{'a' * 64}.{'b' * 32}.0",
]


def test_files_of_others_are_left_alone(cache: CurveCache, tmp_path: Path, caplog: pytest.LogCaptureFixture) -> None:
    directory = tmp_path / "curves"
    directory.mkdir()
    for name in FOREIGN:
        (directory / name).write_text(name)
    cache.store(KEY, CURVE)
    assert points(cache.load(KEY)) == list(CURVE)
    assert [(directory / name).read_text() for name in FOREIGN] == FOREIGN
    assert warnings_of(caplog) == []


def test_what_a_killed_writer_left_is_never_read_and_goes_in_time(
    cache: CurveCache, clock: Clock, tmp_path: Path
) -> None:
    leftover = tmp_path / "curves" / f"{KEY.digest}.{'0' * 32}.{NOW_S}.tmp"
    leftover.parent.mkdir()
    leftover.write_text("[[1, 1.0], [2, 1.0], [4, 1.0]]")
    assert cache.load(KEY) is None
    cache.store(KEY, CURVE)
    assert leftover.exists()
    clock.now_s += 3600 + GRACE_S + 1
    cache.store(KEY, CURVE)
    assert not leftover.exists()


def test_a_folder_where_a_file_should_be_is_a_warning(
    cache: CurveCache, clock: Clock, tmp_path: Path, caplog: pytest.LogCaptureFixture
) -> None:
    folder = tmp_path / "curves" / f"{KEY.digest}.{'0' * 32}.{NOW_S}"
    folder.mkdir(parents=True)
    assert cache.load(KEY) is None
    clock.now_s += 3600 + GRACE_S + 1
    cache.store(KEY, CURVE)
    first, second = warnings_of(caplog)
    assert "is no step-time curve" in first
    assert "an expired step-time curve stays" in second
    assert folder.is_dir()
    assert points(cache.load(KEY)) == list(CURVE)


def test_a_pipe_where_a_file_should_be_is_a_warning_and_nobody_waits(
    cache: CurveCache, tmp_path: Path, caplog: pytest.LogCaptureFixture
) -> None:
    cache.store(KEY, CURVE)
    os.mkfifo(tmp_path / "curves" / f"{KEY.digest}.{'f' * 32}.{NOW_S + 1}")
    assert points(cache.load(KEY)) == list(CURVE)
    (warning,) = warnings_of(caplog)
    assert "is no step-time curve: it is no regular file" in warning


def test_a_directory_that_cannot_be_used_is_a_warning(tmp_path: Path, caplog: pytest.LogCaptureFixture) -> None:
    """A file stands where the directory should be: nothing can be made, listed or written, not even by root."""
    (tmp_path / "file").write_text("kept")
    for directory in (tmp_path / "file", tmp_path / "file" / "below"):
        cache = CurveCache(directory)
        cache.store(KEY, CURVE)
        assert cache.load(KEY) is None
    assert any("the step-time curve is not kept" in warning for warning in warnings_of(caplog))
    assert any("cannot be listed" in warning for warning in warnings_of(caplog))
    assert (tmp_path / "file").read_text() == "kept"


def test_a_full_disk_is_a_warning_and_leaves_nothing_behind(
    cache: CurveCache, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    def fail(descriptor: int) -> None:
        raise OSError(errno.ENOSPC, os.strerror(errno.ENOSPC))

    monkeypatch.setattr(os, "fsync", fail)
    cache.store(KEY, CURVE)
    (warning,) = warnings_of(caplog)
    assert os.strerror(errno.ENOSPC) in warning
    assert list((tmp_path / "curves").iterdir()) == []
    assert cache.load(KEY) is None


WRITER = """
import sys
from thalweg.dspark import CurveCache, CurveKey, StepTimeCurve
cache, me = CurveCache(sys.argv[1]), float(sys.argv[2])
key = CurveKey("a-model", tuple(range(1, 200)), "a device", "0.1.0", "t")
for _ in range(20):
    cache.store(key, StepTimeCurve([(size, me) for size in key.sizes]))
    curve = cache.load(key)
    assert curve is not None and len(set(curve.times_ms)) == 1, "a mixture"
"""


def test_processes_that_write_at_once_see_whole_curves(tmp_path: Path) -> None:
    writers = [
        subprocess.Popen([sys.executable, "-c", WRITER, tmp_path, str(1 + i)], stderr=subprocess.PIPE, text=True)
        for i in range(3)
    ]
    assert [writer.communicate(timeout=60)[1] for writer in writers] == [""] * 3
    assert len(list(tmp_path.iterdir())) == 3 * 20
    assert not list(tmp_path.glob("*.tmp"))


def test_a_curve_of_other_sizes_than_its_key_is_not_stored(cache: CurveCache, tmp_path: Path) -> None:
    with pytest.raises(ConfigError, match=r"the curve has sizes \[1, 2\] and the key \(1, 2, 4\)"):
        cache.store(KEY, StepTimeCurve([(1, 1.0), (2, 1.0)]))
    assert not (tmp_path / "curves").exists()


@pytest.mark.parametrize("ttl_s", [0, -1, float("nan"), float("inf"), "3600", True, None])
def test_a_bad_time_limit_is_refused(tmp_path: Path, ttl_s: Any) -> None:
    with pytest.raises(ConfigError, match=r"ttl_s is .*; a finite number of seconds above 0 is needed"):
        CurveCache(tmp_path, ttl_s)


BAD_KEYS: dict[str, dict[str, Any]] = {
    "model is None; text": {"model": None},
    "device_name is 3; text": {"device_name": 3},
    r"sizes is \[1, 2\]; a tuple": {"sizes": [1, 2]},
    r"sizes is \(\); a tuple": {"sizes": ()},
    r"sizes\[1\] is 0; an integer of at least 1": {"sizes": (1, 0)},
    r"sizes\[1\] is 2 after 2": {"sizes": (2, 2)},
    r"sizes\[0\] is True": {"sizes": (True, 2)},
    "data_parallel_size is 0": {"data_parallel_size": 0},
    "expert_parallel_size is 1.0": {"expert_parallel_size": 1.0},
}


@pytest.mark.parametrize("message", BAD_KEYS)
def test_a_bad_key_is_refused(message: str) -> None:
    with pytest.raises(ConfigError, match=message):
        replace(KEY, **BAD_KEYS[message])
