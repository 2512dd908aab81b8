"""Plots are pictures of the kind that their name says; without matplotlib the error names the extra."""

import subprocess
import sys
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from dspark_testing.synthetic import synthetic_records
from matplotlib.axes import Axes
from matplotlib.figure import Figure

from thalweg.dspark import (
    BetaWorkload,
    ConfidenceRecords,
    StepTimeCurve,
    calibrate,
    plan,
    plot_calibration,
    plot_plan,
)
from thalweg.interfaces import ConfigError

BEGINNINGS = {".png": b"\x89PNG", ".pdf": b"%PDF", ".svg": b"<?xml"}
ROWS = plan(StepTimeCurve([(6, 1.0), (96, 2.0)]), BetaWorkload(0.7, 5), [16, 1], num_batches=2)


@pytest.fixture
def drawn(monkeypatch: pytest.MonkeyPatch) -> list[Figure]:
    """The figures that are saved."""
    figures: list[Figure] = []
    save = Figure.savefig

    def remember(figure: Figure, *arguments: Any, **options: Any) -> None:
        figures.append(figure)
        save(figure, *arguments, **options)

    monkeypatch.setattr(Figure, "savefig", remember)
    return figures


def lines_of(panel: Axes) -> list[list[tuple[float, float]]]:
    return [[(float(x), float(y)) for x, y in np.asarray(line.get_xydata())] for line in panel.lines]


@pytest.mark.parametrize("suffix", BEGINNINGS)
def test_the_suffix_says_what_kind_of_picture(tmp_path: Path, suffix: str) -> None:
    plot_calibration(calibrate(synthetic_records(300, (1.0,))), tmp_path / f"calibration{suffix}")
    plot_plan(ROWS, tmp_path / f"plan{suffix.upper()}")
    for path in tmp_path.iterdir():
        assert path.read_bytes().startswith(BEGINNINGS[suffix])


def test_a_calibration_is_drawn_as_its_bins_before_and_after(tmp_path: Path, drawn: list[Figure]) -> None:
    calibration = calibrate(synthetic_records(2000))
    plot_calibration(calibration, tmp_path / "plot.png")
    assert len(drawn[0].axes) == 5
    for panel, position in zip(drawn[0].axes, calibration.positions, strict=True):
        assert position.before is not None
        assert position.after is not None
        diagonal, *curves = lines_of(panel)
        assert diagonal == [(0, 0), (1, 1)]
        bins = [quality.reliability for quality in (position.before, position.after)]
        assert curves == [list(zip(each.predicted, each.observed, strict=True)) for each in bins]
        assert f"{position.temperature:.3f}" in panel.get_title()


@pytest.mark.parametrize("draft_length", [1, 6])
def test_any_number_of_positions_has_its_panels(tmp_path: Path, draft_length: int, drawn: list[Figure]) -> None:
    plot_calibration(calibrate(synthetic_records(300, (1.0,) * draft_length)), tmp_path / "plot.png")
    assert sum(bool(panel.get_title()) for panel in drawn[0].axes) == draft_length


def test_a_position_without_rows_is_an_empty_panel(tmp_path: Path, drawn: list[Figure]) -> None:
    plot_calibration(calibrate(ConfidenceRecords(np.array([[0.5, np.nan]]), np.array([1]))), tmp_path / "plot.png")
    assert [len(panel.lines) for panel in drawn[0].axes] == [3, 1]


def test_a_plan_is_drawn_over_ascending_concurrency(tmp_path: Path, drawn: list[Figure]) -> None:
    plot_plan(ROWS, tmp_path / "plot.png")
    throughput, gain, drafts = drawn[0].axes
    many, one = ROWS
    assert lines_of(throughput)[1] == [(1, one.variable.tokens_per_s), (16, many.variable.tokens_per_s)]
    assert lines_of(gain)[0] == [(1, 100 * one.gain), (16, 100 * many.gain)]
    assert lines_of(drafts)[0] == [(1, 5.0), (16, 5.0)]


def test_a_picture_of_no_known_kind_is_refused(tmp_path: Path) -> None:
    for name in ("plot.txt", "plot", "plot.", ".png"):
        with pytest.raises(ConfigError, match=r"should end in one of .*\.pdf.*\.png"):
            plot_plan(ROWS, tmp_path / name)
    assert list(tmp_path.iterdir()) == []


def test_no_rows_are_no_plot(tmp_path: Path) -> None:
    with pytest.raises(ConfigError, match="there are no rows to plot"):
        plot_plan([], tmp_path / "plot.png")


def test_without_matplotlib_the_error_names_the_extra(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    monkeypatch.setitem(sys.modules, "matplotlib.backends.backend_agg", None)
    with pytest.raises(ConfigError, match=r"plots need matplotlib: pip install 'thalweg-dspark\[plot\]'"):
        plot_plan(ROWS, tmp_path / "plot.png")


def test_nothing_but_a_plot_imports_matplotlib() -> None:
    load = "import sys, thalweg.dspark, thalweg.dspark.cli; sys.exit('matplotlib' in sys.modules)"
    assert subprocess.run([sys.executable, "-c", load]).returncode == 0
