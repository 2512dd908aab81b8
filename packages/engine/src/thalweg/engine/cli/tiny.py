"""Write a random small checkpoint in the real format."""

from __future__ import annotations

import argparse
import json
from pathlib import Path
from typing import TYPE_CHECKING

from thalweg.interfaces import ConfigError

if TYPE_CHECKING:
    from thalweg.model import ModelConfig

_MOST_DRAFT_LAYERS = 8
_LONGEST_SEED = 100  # digits, leading zeros included; Python refuses to convert really long ones


def add_arguments(parser: argparse.ArgumentParser) -> None:
    """Declare the options of this command."""
    parser.add_argument("directory", metavar="DIR", help="folder to write to; must be new or empty")
    parser.add_argument("--seed", metavar="SEED", default="0", help="of the random weights (default 0)")
    parser.add_argument(
        "--drafts",
        metavar="LAYERS",
        nargs="?",
        const="1",
        help=f"give the built-in model a drafter of 1 to {_MOST_DRAFT_LAYERS} layers (1 if no number follows)",
    )
    parser.add_argument("--config", metavar="FILE", help="a config.json to follow; without it a small built-in one")


def run(arguments: argparse.Namespace) -> int:
    """Write the files and say where. Raises ConfigError for a folder in use or a bad config."""
    directory = Path(arguments.directory)
    try:
        is_free = not directory.exists() or (directory.is_dir() and not any(directory.iterdir()))
    except (OSError, ValueError) as error:
        raise ConfigError(f"{directory} cannot be looked into: {error}") from None
    if not is_free:
        raise ConfigError(f"{directory} exists and is not an empty folder; give a new one")
    seed = _seed(arguments.seed)
    if arguments.config is not None and arguments.drafts is not None:
        raise ConfigError("--drafts and --config are both given; a drafter is part of the config, so give one of them")
    num_layers = 0 if arguments.drafts is None else _draft_layers(arguments.drafts)
    config = None if arguments.config is None else _read_config(Path(arguments.config))
    from thalweg.model import small_config, write_random_checkpoint

    if num_layers:
        config = small_config(num_nextn_predict_layers=num_layers)

    try:
        write_random_checkpoint(directory, config, seed)
    except OSError as error:
        raise ConfigError(f"{directory} cannot be written: {error.strerror}") from None
    num_bytes = sum(file.stat().st_size for file in directory.iterdir())
    print(f"wrote a random checkpoint of {num_bytes / 1e6:.1f} MB to {directory}")
    print(f'try: thalweg generate --model {directory} --prompt "Hello"')
    return 0


def _seed(text: str) -> int:
    if not (text.isascii() and text.isdecimal() and len(text) <= _LONGEST_SEED and int(text) < 2**64):
        raise ConfigError(f"--seed is {text!r}; it must be an integer from 0 to 2**64-1")
    return int(text)


def _draft_layers(text: str) -> int:
    if not (text.isascii() and text.isdecimal() and len(text) <= _LONGEST_SEED):
        raise ConfigError(f"--drafts is {text!r}; it must be a number of draft layers, or come after the folder")
    if not 1 <= int(text) <= _MOST_DRAFT_LAYERS:
        raise ConfigError(f"--drafts is {text}; 1 to {_MOST_DRAFT_LAYERS} draft layers are accepted")
    return int(text)


def _read_config(path: Path) -> ModelConfig:
    from thalweg.model import ModelConfig

    try:
        document = json.loads(path.read_text(encoding="utf-8"))
    except (OSError, ValueError, RecursionError) as error:
        raise ConfigError(f"--config {path} cannot be read: {error}") from None
    if not isinstance(document, dict):
        raise ConfigError(f"--config {path} holds {type(document).__name__}; it must be a JSON object")
    return ModelConfig.from_dict(document)
