"""Show what a checkpoint holds, what is missing and what is unexpected; reads headers only."""

from __future__ import annotations

import argparse


def add_arguments(parser: argparse.ArgumentParser) -> None:
    """Declare the options of this command."""
    parser.add_argument("checkpoint", metavar="CHECKPOINT", help="a folder with config.json, index and shards")
    parser.add_argument("--all", action="store_true", help="list every tensor, not one line per kind of tensor")


def run(arguments: argparse.Namespace) -> int:
    """Print the report. 1 if the loader would refuse the checkpoint. Raises ThalwegError when there is no report."""
    from thalweg.model import inspect_checkpoint

    report = inspect_checkpoint(arguments.checkpoint)
    print(report.render(every_tensor=arguments.all))
    return int(not report.is_loadable)
