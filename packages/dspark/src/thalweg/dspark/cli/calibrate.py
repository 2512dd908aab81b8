"""Fit a temperature for each draft position from recorded confidences, and show what it improves."""

from __future__ import annotations

import argparse
import os
from pathlib import Path

from thalweg.dspark.calibration import Calibration, PositionFit, calibrate
from thalweg.dspark.calibration_file import write_calibration
from thalweg.dspark.plots import check_plot, plot_calibration
from thalweg.dspark.records import join_records, read_records
from thalweg.dspark.reliability import NUM_BINS
from thalweg.interfaces import ConfigError
from thalweg.interfaces.text_table import number_table


def add_arguments(parser: argparse.ArgumentParser) -> None:
    """Arguments of `thalweg-dspark calibrate`."""
    parser.add_argument("records", nargs="+", metavar="RECORDS", help="files of confidence records, one or more")
    parser.add_argument("--output", metavar="FILE", help="write the temperatures as JSON")
    parser.add_argument("--dataset", metavar="NAME", help="what the records are of, for the output (the file names)")
    parser.add_argument("--bins", type=int, default=NUM_BINS, metavar="N", help="bins of the error (%(default)s)")
    parser.add_argument("--plot", metavar="FILE", help="draw predicted against happened, as .png, .svg or .pdf")


def run(arguments: argparse.Namespace) -> int:
    """Print the table and the temperatures; write what was asked for."""
    if arguments.plot is not None:
        check_plot(arguments.plot)
    for option, path in (("--output", arguments.output), ("--plot", arguments.plot)):
        if path is not None and any(_is_same_file(path, records) for records in arguments.records):
            raise ConfigError(f"{option} is {path}, one of the files of records; it must be another file")
    calibration = calibrate(join_records([read_records(path) for path in arguments.records]), arguments.bins)
    print(table(calibration))
    print()
    print(f"records: {calibration.num_records}")
    print(f"temperatures: {','.join(f'{temperature:.6g}' for temperature in calibration.temperatures)}")
    if arguments.output is not None:
        names = ", ".join(Path(path).name for path in arguments.records)
        write_calibration(arguments.output, calibration, names if arguments.dataset is None else arguments.dataset)
    if arguments.plot is not None:
        plot_calibration(calibration, arguments.plot)
    return 0


def _is_same_file(one: str, other: str) -> bool:
    return os.path.realpath(one) == os.path.realpath(other)


def table(calibration: Calibration) -> str:
    """One line per draft position."""
    header = ("draft", "rows", "accepted", "temperature", "ECE", "after", "Brier", "after", "AUROC", "after", "")
    return number_table(header, [_cells(j, position) for j, position in enumerate(calibration.positions, start=1)])


def _cells(j: int, position: PositionFit) -> list[str]:
    if position.before is None or position.after is None:
        return [str(j), "0", "-", f"{position.temperature:.3f}", *["-"] * 6, position.note]
    before, after = position.before, position.after
    figures = (before.reliability.error, after.reliability.error, before.brier, after.brier, before.auroc, after.auroc)
    return [
        str(j),
        str(position.num_rows),
        f"{position.num_accepted / position.num_rows:.1%}",
        f"{position.temperature:.3f}",
        *("-" if figure is None else f"{figure:.4f}" for figure in figures),
        position.note,
    ]
