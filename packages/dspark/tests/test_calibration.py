"""Calibration: known temperatures are found, good confidences stay, and thin or odd records do no harm."""

import json
from pathlib import Path

import numpy as np
import pytest
from dspark_testing.synthetic import TRUE_TEMPERATURES, sigmoid, synthetic_records
from numpy.typing import NDArray

from thalweg.dspark import Calibration, ConfidenceRecords, calibrate, read_temperatures, write_calibration
from thalweg.interfaces import ConfigError


def notes(calibration: Calibration) -> list[str]:
    return [position.note for position in calibration.positions]


def errors(calibration: Calibration) -> list[tuple[float, float]]:
    """Expected calibration error of every position, before and after."""
    pairs = [(position.before, position.after) for position in calibration.positions]
    return [(before.reliability.error, after.reliability.error) for before, after in pairs if before and after]


def test_known_temperatures_are_found_within_a_tenth_and_the_error_falls() -> None:
    """40,000 rows: over the seeds of `soak` the standard deviation is 1 % at the first position, 3 % at the last."""
    calibration = calibrate(synthetic_records(40_000))
    assert calibration.temperatures == pytest.approx(TRUE_TEMPERATURES, rel=0.1)
    for before, after in errors(calibration):
        assert after < 0.015
        assert after <= before + 0.001
    assert sum(after for _, after in errors(calibration)) < 0.4 * sum(before for before, _ in errors(calibration))
    for position in calibration.positions:
        assert position.before is not None
        assert position.after is not None
        assert position.after.brier <= position.before.brier + 1e-4


def likelihood_by_definition(records: ConfidenceRecords, j: int, temperatures: list[float]) -> float:
    """Log likelihood of the prefix outcomes at position j, from plain products."""
    odds = records.confidences[:, : j + 1] / (1 - records.confidences[:, : j + 1])
    survival = np.prod(sigmoid(np.log(odds) / np.array(temperatures)), axis=1)
    chances = np.where(records.num_accepted > j, survival, 1 - survival)
    return float(np.log(chances).sum())


def test_each_temperature_is_the_likeliest_given_those_before_it() -> None:
    records = synthetic_records(3000, (1.5, 0.5, 2.0), seed=3)
    found = list(calibrate(records).temperatures)
    for j in range(3):
        grid = np.geomspace(0.2, 5, 800).tolist()
        likelihoods = [likelihood_by_definition(records, j, [*found[:j], temperature]) for temperature in grid]
        assert found[j] == pytest.approx(grid[int(np.argmax(likelihoods))], rel=0.003)


def test_confidences_that_are_calibrated_stay_as_they_are() -> None:
    """The test that a temperature must pass errs once in twenty."""
    fitted = np.array([calibrate(synthetic_records(5000, (1.0,) * 5, seed=seed)).temperatures for seed in range(10)])
    assert (fitted == 1.0).sum() >= 45
    assert fitted == pytest.approx(np.ones((10, 5)), rel=0.25)


def test_a_temperature_that_is_kept_says_so() -> None:
    calibration = calibrate(synthetic_records(5000, (1.0, 3.0), seed=0))
    assert calibration.temperatures[0] == 1.0
    assert notes(calibration) == ["kept: no other is clearly better", ""]


@pytest.mark.parametrize("num_rows", [1, 5, 19])
def test_a_few_records_change_nothing(num_rows: int) -> None:
    calibration = calibrate(synthetic_records(num_rows, (4.0,) * 5, seed=1))
    assert calibration.temperatures == (1.0,) * 5
    assert all(note.startswith("kept: ") and note.endswith(", 10 needed") for note in notes(calibration))


@pytest.mark.parametrize(
    ("num_accepted", "note"), [(2, "kept: 0 rejected, 10 needed"), (0, "kept: 0 accepted, 10 needed")]
)
def test_outcomes_of_one_kind_change_nothing(num_accepted: int, note: str) -> None:
    confidences = np.random.default_rng(0).random((500, 2))
    calibration = calibrate(ConfidenceRecords(confidences, np.full(500, num_accepted)))
    assert calibration.temperatures == (1.0, 1.0)
    assert notes(calibration) == [note, note]
    assert [position.after.auroc for position in calibration.positions if position.after] == [None, None]


def constant(confidence: float, share: float) -> Calibration:
    """1000 rows of one draft with the same confidence, of which this share was accepted."""
    num_accepted = (np.arange(1000) < 1000 * share).astype(np.int64)
    return calibrate(ConfidenceRecords(np.full((1000, 1), confidence), num_accepted))


def test_constant_confidences_are_moved_to_the_share_that_was_accepted() -> None:
    calibration = constant(0.9, 0.7)
    assert calibration.temperatures == pytest.approx([np.log(9) / np.log(7 / 3)], rel=1e-4)
    assert errors(calibration)[0] == pytest.approx((0.2, 0.0), abs=1e-5)


def test_a_confidence_of_one_half_is_the_same_at_every_temperature() -> None:
    assert constant(0.5, 0.9).temperatures == (1.0,)


@pytest.mark.parametrize(("confidence", "share", "edge"), [(0.9, 0.3, 5.0), (0.55, 0.98, 0.2)])
def test_what_no_temperature_puts_right_stops_at_the_edge_and_says_so(
    confidence: float, share: float, edge: float
) -> None:
    calibration = constant(confidence, share)
    assert calibration.temperatures == pytest.approx([edge], rel=1e-3)
    assert notes(calibration) == ["at the edge of 0.2 to 5"]


@pytest.mark.filterwarnings("error")
@pytest.mark.parametrize("extreme", [0.0, 1.0, 1e-300, 1 - 2**-53])
@pytest.mark.parametrize("num_accepted", [0, 1, 2])
def test_confidences_of_zero_and_one_count_as_very_near_them(extreme: float, num_accepted: int) -> None:
    """A few of them, right or wrong, among many good ones: everything stays finite and near the truth."""
    records = synthetic_records(8000, (1.5, 0.7), seed=4)
    confidences, counts = records.confidences.copy(), records.num_accepted.copy()
    confidences[:3, 0], counts[:3] = extreme, num_accepted
    calibration = calibrate(ConfidenceRecords(confidences, counts))
    assert calibration.temperatures == pytest.approx((1.5, 0.7), rel=0.15)
    assert np.isfinite(errors(calibration)).all()


def test_nothing_but_zeros_and_ones_is_calibrated_as_far_as_it_goes() -> None:
    random = np.random.default_rng(0)
    confidences = (random.random((2000, 1)) < 0.7).astype(np.float64)
    holds = np.where(random.random(2000) < 0.9, confidences[:, 0], 1 - confidences[:, 0]).astype(np.int64)
    calibration = calibrate(ConfidenceRecords(confidences, holds))
    assert calibration.temperatures == pytest.approx([5.0], rel=1e-3)


def cut(records: ConfidenceRecords, lengths: NDArray[np.int64]) -> ConfidenceRecords:
    """The same with fewer drafts verified."""
    confidences = np.where(np.arange(records.draft_length) < lengths[:, None], records.confidences, np.nan)
    return ConfidenceRecords(confidences, np.minimum(records.num_accepted, lengths))


def test_rows_that_verified_fewer_drafts_count_where_they_did() -> None:
    records = synthetic_records(20_000, seed=5)
    lengths = np.random.default_rng(5).integers(1, 6, 20_000)
    calibration = calibrate(cut(records, lengths))
    assert [position.num_rows for position in calibration.positions] == [int((lengths > j).sum()) for j in range(5)]
    assert calibration.temperatures == pytest.approx(TRUE_TEMPERATURES, rel=0.15)


def test_a_position_that_was_never_verified_has_no_figures() -> None:
    calibration = calibrate(cut(synthetic_records(2000), np.full(2000, 3)))
    last = calibration.positions[-1]
    assert (last.num_rows, last.num_accepted, last.temperature, last.before, last.after) == (0, 0, 1.0, None, None)


def test_no_records_at_all_are_refused() -> None:
    with pytest.raises(ConfigError, match="there are no records to calibrate with"):
        calibrate(ConfidenceRecords(np.empty((0, 5)), np.empty(0, np.int64)))


def test_a_bad_number_of_bins_is_refused() -> None:
    with pytest.raises(ConfigError, match="num_bins is 0"):
        calibrate(synthetic_records(10), num_bins=0)


def test_the_file_holds_what_was_fitted_and_gives_the_temperatures_back(tmp_path: Path) -> None:
    calibration = calibrate(cut(synthetic_records(5000), np.full(5000, 4)))
    path = tmp_path / "temperatures.json"
    write_calibration(path, calibration, "a name")
    value = json.loads(path.read_text())
    assert list(value) == ["temperatures", "dataset", "num_samples", "ece_before", "ece_after"]
    assert (value["dataset"], value["num_samples"]) == ("a name", 5000)
    assert list(zip(value["ece_before"], value["ece_after"], strict=True)) == [*errors(calibration), (None, None)]
    assert read_temperatures(path, 5) == calibration.temperatures
    with pytest.raises(ConfigError, match="has 5 temperatures; 3 are needed"):
        read_temperatures(path, 3)
