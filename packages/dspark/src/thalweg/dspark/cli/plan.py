"""Show what verifying fewer drafts gains over concurrency, from a step-time curve and acceptance data."""

from __future__ import annotations

import argparse
import math
from collections.abc import Sequence
from pathlib import Path

from thalweg.dspark.acceptance_file import read_survival
from thalweg.dspark.calibration_file import read_temperatures
from thalweg.dspark.curve import StepTimeCurve, graph_sizes
from thalweg.dspark.curve_file import read_curve
from thalweg.dspark.planning import PlanRow, concurrencies_within, plan
from thalweg.dspark.plots import check_plot, plot_plan
from thalweg.dspark.records import join_records, read_records
from thalweg.dspark.temperatures import parse_temperatures
from thalweg.dspark.workload import BetaWorkload, MeasuredWorkload, workload_of_records
from thalweg.interfaces import ConfigError
from thalweg.interfaces.text_table import number_table

DEFAULT_DRAFT_LENGTH = 5


def add_arguments(parser: argparse.ArgumentParser) -> None:
    """Arguments of `thalweg-dspark plan`."""
    parser.add_argument("--curve", required=True, metavar="FILE", help="step times, JSON [[query tokens, ms], ...]")
    parser.add_argument(
        "--interpolate",
        action="store_true",
        help="the curve has few points: put graphs on straight lines between them",
    )
    source = parser.add_mutually_exclusive_group(required=True)
    source.add_argument("--accept-rate", type=float, metavar="RATE", help="mean chance that a draft is accepted")
    source.add_argument("--acceptance", metavar="FILE", help="acceptance counts, per request or in total")
    source.add_argument("--records", nargs="+", metavar="FILE", help="confidence records, as for calibrate")
    parser.add_argument(
        "--concentration", type=float, metavar="C", help="with --accept-rate: the smaller, the more requests differ"
    )
    parser.add_argument(
        "--temperatures", metavar="T", help="with --records: one or one per draft, or a file that calibrate wrote"
    )
    parser.add_argument("--draft-length", type=int, metavar="G", help="drafts per step (5, or as many as the data has)")
    parser.add_argument("--concurrency", metavar="N,N,...", help="numbers of sequences (powers of two that fit)")
    parser.add_argument("--sampler-ms", type=float, default=0.0, metavar="MS", help="time of a step beyond the curve")
    parser.add_argument("--batches", type=int, default=200, metavar="N", help="steps for each line (%(default)s)")
    parser.add_argument("--seed", type=int, default=0, metavar="N", help="of the random batches (%(default)s)")
    parser.add_argument("--plot", metavar="FILE", help="draw the table, as .png, .svg or .pdf")


def run(arguments: argparse.Namespace) -> int:
    """Print the table; draw it where asked."""
    if arguments.plot is not None:
        check_plot(arguments.plot)
    curve = read_curve(arguments.curve)
    if arguments.interpolate:
        curve = curve.interpolated(graph_sizes(curve.largest))
    workload = _workload(arguments)
    rows = plan(
        curve,
        workload,
        _concurrencies(arguments.concurrency, curve, workload.draft_length),
        num_batches=arguments.batches,
        sampler_ms=arguments.sampler_ms,
        seed=arguments.seed,
    )
    print(table(rows))
    if arguments.plot is not None:
        plot_plan(rows, arguments.plot)
    return 0


def table(rows: Sequence[PlanRow]) -> str:
    """One line per concurrency; drafts verified and accepted length are per sequence and step."""
    header = ("sequences", "fixed tok/s", "variable tok/s", "gain", "verified", "of", "accepted length", "of")
    return number_table(header, [_cells(row) for row in rows])


def _cells(row: PlanRow) -> list[str]:
    return [
        str(row.num_sequences),
        f"{row.fixed.tokens_per_s:.1f}",
        f"{row.variable.tokens_per_s:.1f}",
        f"{row.gain:+.1%}",
        f"{row.variable.verified_drafts:.2f}",
        f"{row.fixed.verified_drafts:.0f}",
        f"{row.variable.accepted_length:.2f}",
        f"{row.fixed.accepted_length:.2f}",
    ]


def _workload(arguments: argparse.Namespace) -> BetaWorkload | MeasuredWorkload:
    if arguments.concentration is not None and arguments.accept_rate is None:
        raise ConfigError("--concentration goes with --accept-rate; files say themselves how requests differ")
    if arguments.temperatures is not None and arguments.records is None:
        raise ConfigError("--temperatures goes with --records; there are no confidences otherwise")
    if arguments.accept_rate is not None:
        draft_length = DEFAULT_DRAFT_LENGTH if arguments.draft_length is None else arguments.draft_length
        concentration = math.inf if arguments.concentration is None else arguments.concentration
        return BetaWorkload(arguments.accept_rate, draft_length, concentration)
    if arguments.acceptance is not None:
        survival = read_survival(arguments.acceptance)
        workload = MeasuredWorkload(survival, survival)
    else:
        workload = _workload_of_files(arguments.records, arguments.temperatures)
    return workload if arguments.draft_length is None else workload.first(arguments.draft_length)


def _workload_of_files(paths: Sequence[str], temperatures: str | None) -> MeasuredWorkload:
    records = join_records([read_records(path) for path in paths])
    if temperatures is not None and (temperatures.endswith(".json") or Path(temperatures).is_file()):
        return workload_of_records(records, read_temperatures(temperatures, records.draft_length))
    return workload_of_records(records, parse_temperatures(temperatures or (), records.draft_length))


def _concurrencies(text: str | None, curve: StepTimeCurve, draft_length: int) -> list[int]:
    if text is None:
        return concurrencies_within(curve, draft_length)
    try:
        return [int(number) for number in text.split(",")]
    except ValueError:
        raise ConfigError(f"--concurrency is {text!r}; numbers of sequences separated by commas are needed") from None
