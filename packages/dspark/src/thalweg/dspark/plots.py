"""Plots of a calibration and of a plan; they need matplotlib, the extra `plot`."""

from __future__ import annotations

import io
import os
from collections.abc import Sequence
from pathlib import Path
from typing import TYPE_CHECKING

from thalweg.dspark.calibration import Calibration, PositionFit
from thalweg.dspark.planning import PlanRow
from thalweg.interfaces import ConfigError

if TYPE_CHECKING:
    from matplotlib.axes import Axes
    from matplotlib.figure import Figure

FIXED, VARIABLE = "tab:gray", "tab:blue"
BEFORE, AFTER = "tab:gray", "tab:blue"


def check_plot(path: str | os.PathLike[str]) -> None:
    """Raise ConfigError when a plot could not be made: matplotlib is missing, or no picture has such a name."""
    try:
        from matplotlib.backends.backend_agg import FigureCanvasAgg
    except ImportError as error:
        raise ConfigError(f"plots need matplotlib: pip install 'thalweg-dspark[plot]' ({error})") from error
    suffix, known = Path(path).suffix.lower(), FigureCanvasAgg.get_supported_filetypes()
    if suffix[1:] not in known:
        raise ConfigError(f"{os.fspath(path)} should end in one of {', '.join(f'.{name}' for name in sorted(known))}")


def plot_calibration(calibration: Calibration, path: str | os.PathLike[str]) -> None:
    """Draw for each draft position what was predicted against what happened, before and after, and write the picture.

    The suffix of the path says which kind. Raises ConfigError as `check_plot` does, and OSError.
    """
    check_plot(path)
    from matplotlib.figure import Figure

    positions = calibration.positions
    num_columns = min(len(positions), 5)
    num_lines = -(-len(positions) // num_columns)
    figure = Figure(figsize=(3.2 * num_columns, 3.4 * num_lines), layout="constrained")
    panels = figure.subplots(num_lines, num_columns, squeeze=False, sharex=True, sharey=True)
    for j, panel in enumerate(panels.flat):
        if j < len(positions):
            _draw_position(panel, j, positions[j])
        else:
            panel.set_axis_off()
    figure.supxlabel("predicted: this draft and all before it are accepted")
    figure.supylabel("happened")
    _save(figure, path)


def plot_plan(rows: Sequence[PlanRow], path: str | os.PathLike[str]) -> None:
    """Draw throughput, gain and verified drafts over concurrency and write the picture.

    The suffix of the path says which kind. Raises ConfigError as `check_plot` does and for no rows, and OSError.
    """
    check_plot(path)
    if not rows:
        raise ConfigError("there are no rows to plot")
    from matplotlib.figure import Figure

    rows = sorted(rows, key=lambda row: row.num_sequences)
    concurrencies = [row.num_sequences for row in rows]
    figure = Figure(figsize=(11, 3.6), layout="constrained")
    throughput, gain, drafts = figure.subplots(1, 3)
    for way, colour in (("fixed", FIXED), ("variable", VARIABLE)):
        figures = [getattr(row, way) for row in rows]
        throughput.plot(concurrencies, [each.tokens_per_s for each in figures], "o-", color=colour, label=way)
        drafts.plot(concurrencies, [each.verified_drafts for each in figures], "o-", color=colour, label=way)
    gain.plot(concurrencies, [100 * row.gain for row in rows], "o-", color=VARIABLE)
    gain.axhline(0, color=FIXED, linewidth=0.8)
    for panel, title in (
        (throughput, "tokens per second"),
        (gain, "gain, %"),
        (drafts, "verified drafts per sequence"),
    ):
        panel.set_title(title)
        panel.set_xlabel("sequences")
        panel.set_ylim(bottom=0 if panel is not gain else None)
        panel.grid(alpha=0.3)
    throughput.legend(title="verification")
    _save(figure, path)


def _draw_position(panel: Axes, j: int, position: PositionFit) -> None:
    panel.plot([0, 1], [0, 1], color="black", linewidth=0.6)
    panel.set_xlim(0, 1)
    panel.set_ylim(0, 1)
    panel.set_title(f"draft {j + 1}: temperature {position.temperature:.3f}", fontsize="medium")
    for quality, colour, name in ((position.before, BEFORE, "before"), (position.after, AFTER, "after")):
        if quality is not None:
            bins = quality.reliability
            shares = bins.counts / bins.counts.sum()
            label = f"{name}, error {bins.error:.4f}"
            panel.plot(bins.predicted, bins.observed, "-", color=colour, linewidth=0.8)
            panel.scatter(bins.predicted, bins.observed, s=4 + 200 * shares, color=colour, alpha=0.7, label=label)
    if position.before is not None:
        panel.legend(loc="upper left", fontsize="small")


def _save(figure: Figure, path: str | os.PathLike[str]) -> None:
    picture = io.BytesIO()
    figure.savefig(picture, format=Path(path).suffix.lower()[1:], dpi=120)
    Path(path).write_bytes(picture.getvalue())
