"""Files of every kind, damaged at random: a reader refuses them with ConfigError or reads something valid."""

from collections.abc import Callable
from pathlib import Path

import numpy as np
from dspark_testing.synthetic import synthetic_records, write_records

from thalweg.dspark import (
    AcceptanceStatistics,
    ConfidenceRecorder,
    CurveCache,
    CurveKey,
    StepTimeCurve,
    calibrate,
    read_curve,
    read_records,
    read_survival,
    read_temperatures,
    write_acceptance,
    write_calibration,
    write_curve,
)
from thalweg.interfaces import ConfigError

CURVE = StepTimeCurve([(1, 1.5), (8, 2.25), (16, 1e3)])
KEY = CurveKey("a-model", (1, 8, 16), "a device", "0.1.0", "t")
PIECES = (
    b"NaN",
    b"-",
    b"1e999",
    b"[",
    b"]",
    b"{",
    b'"',
    b",",
    b"null",
    b"true",
    b"0",
    b"9" * 400,
    b"\xff",
    b"\n",
    b" ",
)


def check_damaged_files(seed: int, originals: dict[str, bytes], folder: Path) -> int:
    """Damage one file of each kind and read it; returns how many were refused."""
    random = np.random.default_rng(seed)
    readers = {
        "curve": _read_curve,
        "acceptance": _read_acceptance,
        "temperatures": _read_temperatures,
        "records": _read_records,
        "recorder": _continue_records,
    }
    num_refused = 0
    for name, reader in readers.items():
        path = folder / name
        _replace(path, damaged(originals["records" if name == "recorder" else name], random))
        message = _refusal(reader, path)
        assert message is None or name in message
        num_refused += message is not None
    _load_from_cache(folder / "cache", damaged(originals["curve"], random))
    return num_refused


def _refusal(reader: Callable[[Path], None], path: Path) -> str | None:
    """What the reader says of the file; None if it reads it."""
    try:
        reader(path)
    except ConfigError as error:
        return str(error)
    return None


def good_files(folder: Path) -> dict[str, bytes]:
    """Content of a good file of each kind."""
    records = synthetic_records(5, (1.0, 1.0, 1.0))
    write_records(folder / "new", records)
    content = {"records": (folder / "new").read_bytes()}
    (folder / "new").unlink()
    write_curve(folder / "new", CURVE)
    content["curve"] = (folder / "new").read_bytes()
    statistics = AcceptanceStatistics(3)
    statistics.add(records.num_verified, records.num_accepted)
    write_acceptance(folder / "new", [statistics, statistics])
    content["acceptance"] = (folder / "new").read_bytes()
    write_calibration(folder / "new", calibrate(records), "a name")
    content["temperatures"] = (folder / "new").read_bytes()
    (folder / "new").unlink()
    return content


def damaged(content: bytes, random: np.random.Generator) -> bytes:
    """The content with one to three pieces cut out, put in, doubled or exchanged."""
    for _ in range(random.integers(1, 4)):
        start, end = sorted(random.integers(0, len(content) + 1, 2).tolist())
        end = min(end, start + int(random.integers(0, 12)))
        piece = PIECES[random.integers(len(PIECES))]
        middle = (b"", piece, content[start:end] * 2, piece + content[start:end])[random.integers(4)]
        content = content[:start] + middle + content[end:]
    return content


def _replace(path: Path, content: bytes) -> None:
    """Many times faster than writing over what is there."""
    path.unlink(missing_ok=True)
    path.write_bytes(content)


def _read_curve(path: Path) -> None:
    curve = read_curve(path)
    assert curve.sizes == sorted(set(curve.sizes))
    assert all(0 < time_ms < float("inf") for time_ms in curve.times_ms)


def _read_acceptance(path: Path) -> None:
    survival = read_survival(path)
    assert ((survival >= 0) & (survival <= 1)).all()
    assert (np.diff(survival, axis=1) <= 0).all()


def _read_temperatures(path: Path) -> None:
    assert all(1e-5 <= temperature < float("inf") for temperature in read_temperatures(path, 3))


def _read_records(path: Path) -> None:
    records = read_records(path)
    assert (records.num_accepted <= records.num_verified).all()


def _continue_records(path: Path) -> None:
    """A recorder refuses the file and leaves it alone, or adds a record that is read if those before it are good."""
    before = path.read_bytes()
    try:
        with ConfidenceRecorder(path, 3) as recorder:
            recorder.add(np.full((1, 3), 0.5, np.float32), np.array([3]), np.array([2]))
    except ConfigError:
        assert path.read_bytes() == before
        raise
    assert read_records(path).num_accepted[-1] == 2


def _load_from_cache(folder: Path, content: bytes) -> None:
    """The cache never raises, and never finds another curve than one of its sizes."""
    cache = CurveCache(folder, clock=lambda: 1000.0)
    folder.mkdir(exist_ok=True)
    _replace(folder / f"{KEY.digest}.{'0' * 32}.1000", content)
    curve = cache.load(KEY)
    assert curve is None or tuple(curve.sizes) == KEY.sizes
