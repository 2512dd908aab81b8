"""Draw the load of every rank before and after a plan."""

from __future__ import annotations

import argparse

from thalweg.eplb.cli.layout import add_layout_arguments, check_output, read_layout
from thalweg.eplb.files import read_placement
from thalweg.eplb.plots import check_plot, plot_loads


def add_arguments(parser: argparse.ArgumentParser) -> None:
    """Arguments of `thalweg-eplb plot`."""
    add_layout_arguments(parser)
    parser.add_argument("--after", required=True, metavar="FILE", help="npz that plan wrote")
    parser.add_argument("--output", required=True, metavar="FILE", help="the picture, as .png, .svg or .pdf")


def run(arguments: argparse.Namespace) -> int:
    """Write the picture."""
    check_plot(arguments.output)
    check_output(arguments.output)
    layout = read_layout(arguments)
    plot_loads(layout.history, layout.before, read_placement(arguments.after), arguments.output)
    return 0
