"""Where the checkpoint of a configuration lies; importing this needs no torch."""

from __future__ import annotations

import importlib
from pathlib import Path

from thalweg.engine.config import EngineConfig
from thalweg.interfaces import ConfigError


def checkpoint_directory(config: EngineConfig) -> Path:
    """Where the checkpoint lies. Raises ConfigError when none is given and thalweg-tiny is not installed."""
    if config.model is not None:
        return Path(config.model)
    try:
        tiny = importlib.import_module("thalweg.tiny")
    except ImportError as error:
        raise ConfigError(
            "model is None and the distribution thalweg-tiny is not installed; install it, give a checkpoint "
            "directory, or write a small random one with `thalweg tiny DIR`"
        ) from error
    path: Path = tiny.checkpoint_path()
    return path
