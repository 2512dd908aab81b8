"""A picture of rank loads before and after a plan; it needs matplotlib, the extra `plot`."""

from __future__ import annotations

import io
import os
from pathlib import Path
from typing import TYPE_CHECKING

import numpy as np

from thalweg.eplb.metrics import imbalance, imbalance_per_layer, rank_loads
from thalweg.eplb.placement import check_same_shape
from thalweg.interfaces import ConfigError

if TYPE_CHECKING:
    from matplotlib.axes import Axes
    from numpy.typing import NDArray

    from thalweg.eplb.history import History
    from thalweg.eplb.placement import Placement

BEFORE, AFTER = "tab:gray", "tab:blue"


def check_plot(path: str | os.PathLike[str]) -> None:
    """Raise ConfigError when a plot could not be made: matplotlib is missing, or no picture has such a name."""
    try:
        from matplotlib.backends.backend_agg import FigureCanvasAgg
    except ImportError as error:
        raise ConfigError(f"plots need matplotlib: pip install 'thalweg-eplb[plot]' ({error})") from error
    suffix, known = Path(path).suffix.lower(), FigureCanvasAgg.get_supported_filetypes()
    if suffix[1:] not in known:
        raise ConfigError(f"{os.fspath(path)} should end in one of {', '.join(f'.{name}' for name in sorted(known))}")


def plot_loads(history: History, before: Placement, after: Placement, path: str | os.PathLike[str]) -> None:
    """Draw load over rank, peak over steps and imbalance over layers for both placements, and write the picture.

    Loads are relative to the mean of their step and layer. The suffix of the path says which kind of picture.
    Raises ConfigError as `check_plot` does and for placements of different shapes, and OSError.
    """
    check_plot(path)
    check_same_shape(before=before, after=after)
    from matplotlib.figure import Figure

    figure = Figure(figsize=(13, 3.8), layout="constrained")
    ranks, steps, layers = figure.subplots(1, 3)
    for name, placement, colour in (("before", before, BEFORE), ("after", after, AFTER)):
        loads = rank_loads(history, placement)
        label = f"{name}, imbalance {imbalance(loads):.3f}"
        relative = loads / np.maximum(loads.mean(axis=2, keepdims=True), np.finfo(float).tiny)
        _draw_ranks(ranks, relative, colour, label)
        steps.plot(relative.max(axis=2).mean(axis=1), color=colour, linewidth=1)
        layers.plot(imbalance_per_layer(loads), "o-", color=colour, markersize=3, linewidth=1)
    for panel, title, unit in (
        (ranks, "load of a rank, of the mean", "rank, heaviest first"),
        (steps, "peak load, mean over layers", "step"),
        (layers, "imbalance", "layer"),
    ):
        panel.set_title(title)
        panel.set_xlabel(unit)
        panel.xaxis.get_major_locator().set_params(integer=True)
        panel.set_ylim(bottom=0 if panel is ranks else None)
        panel.axhline(1, color="black", linewidth=0.6)
        panel.grid(alpha=0.3)
    ranks.legend()
    picture = io.BytesIO()
    figure.savefig(picture, format=Path(path).suffix.lower()[1:], dpi=120)
    Path(path).write_bytes(picture.getvalue())


def _draw_ranks(panel: Axes, relative: NDArray[np.float64], colour: str, label: str) -> None:
    """The mean over steps and layers of the heaviest rank, of the second heaviest, and so on, and the middle 90 %."""
    ordered = -np.sort(-relative, axis=2).reshape(-1, relative.shape[2])
    low, high = np.quantile(ordered, [0.05, 0.95], axis=0)
    positions = np.arange(relative.shape[2])
    panel.fill_between(positions, low, high, color=colour, alpha=0.25, linewidth=0)
    panel.plot(positions, ordered.mean(axis=0), color=colour, label=label)
