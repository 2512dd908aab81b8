"""Show what a checkpoint holds, what is missing and what is unexpected; reads headers only."""

from __future__ import annotations

import argparse


def add_arguments(parser: argparse.ArgumentParser) -> None:
    """Declare the options of this command."""
    parser.add_argument("checkpoint", metavar="CHECKPOINT", help="a folder with config.json and safetensors shards")


def run(arguments: argparse.Namespace) -> int:
    """Print the report. 1 if the checkpoint is not complete."""
    from thalweg.model import inspect_checkpoint

    report = inspect_checkpoint(arguments.checkpoint)
    print(report.render())
    return int(not report.is_complete)
