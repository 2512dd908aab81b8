"""What all commands ask for: a history, and how many ranks and slots."""

from __future__ import annotations

import argparse
import os
from dataclasses import dataclass

from thalweg.eplb._checks import require_integer
from thalweg.eplb.files import read_history, read_placement
from thalweg.eplb.history import History
from thalweg.eplb.placement import Placement
from thalweg.eplb.slots import LARGEST_SIZE, redundant_slots
from thalweg.interfaces import ConfigError


@dataclass(frozen=True, slots=True)
class Layout:
    """Sizes, and the placement that plans are compared with."""

    history: History
    num_slots: int
    num_ranks: int
    current: Placement | None
    """What --current names; None: the argument was not given."""

    @property
    def before(self) -> Placement:
        """The placement in use: the current one, or the initial one."""
        if self.current is not None:
            return self.current
        _, num_layers, num_experts = self.history.shape
        return Placement.initial(num_layers, num_experts, self.num_slots, self.num_ranks)


def add_layout_arguments(parser: argparse.ArgumentParser) -> None:
    """The history, --ranks, --redundant and --current."""
    parser.add_argument("history", metavar="HISTORY", help="npz with tokens_per_expert [steps, layers, experts]")
    parser.add_argument("--ranks", type=int, metavar="N", help="ranks of the expert-parallel group")
    parser.add_argument(
        "--redundant",
        type=int,
        metavar="N",
        help="least number of redundant slots over all ranks; rounded up (one per rank)",
    )
    parser.add_argument("--current", metavar="FILE", help="npz with the placement in use; says ranks and slots itself")


def read_layout(arguments: argparse.Namespace) -> Layout:
    """The files and sizes that the arguments name; ConfigError where they do not fit together."""
    history = read_history(arguments.history)
    if arguments.current is not None:
        if arguments.ranks is not None or arguments.redundant is not None:
            raise ConfigError("--ranks and --redundant do not go with --current, which has both")
        current = read_placement(arguments.current)
        placed, counted = (current.num_layers, current.num_experts), history.shape[1:]
        if placed != counted:
            raise ConfigError(f"{arguments.current} places (layers, experts) {placed}; the history has {counted}")
        return Layout(history, current.num_slots, current.num_ranks, current)
    if arguments.ranks is None:
        raise ConfigError("--ranks is missing; it is needed without --current")
    require_integer("--ranks", arguments.ranks, 1, LARGEST_SIZE)
    if arguments.redundant is not None:
        require_integer("--redundant", arguments.redundant, 0, LARGEST_SIZE)
    num_experts, minimum = history.shape[2], arguments.ranks if arguments.redundant is None else arguments.redundant
    redundant = redundant_slots(num_experts, minimum, arguments.ranks, layout=arguments.history)
    return Layout(history, num_experts + redundant, arguments.ranks, None)


def check_output(path: str) -> None:
    """Raise ConfigError unless the file that --output names can be written; leaves what is there as it is."""
    existed = os.path.lexists(path)
    try:
        open(path, "ab").close()
        if not existed:
            os.remove(path)
    except OSError as error:
        raise ConfigError(f"--output {path} cannot be written: {error.strerror}") from None
