"""Where the checkpoint lies on disk."""

from pathlib import Path


def checkpoint_path() -> Path:
    """The directory with config.json, tokenizer.json, the shards and their index.

    Raises FileNotFoundError when the installation lost its data files.
    """
    path = Path(__file__).parent / "checkpoint"
    if not (path / "config.json").is_file():
        raise FileNotFoundError(f"{path} has no config.json; reinstall thalweg-tiny")
    return path
