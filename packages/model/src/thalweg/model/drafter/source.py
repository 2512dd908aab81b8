"""The tensors of a checkpoint's drafter, read so that none of them is forgotten."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

from thalweg.interfaces import CheckpointError, ConfigError
from thalweg.model.config import ModelConfig
from thalweg.model.loader import Checkpoint
from thalweg.model.names import tied_target
from thalweg.model.weights import TensorSource, TrackedSource


@contextmanager
def draft_tensors(path: str | Path, config: ModelConfig) -> Iterator[TensorSource]:
    """The stored tensors of the checkpoint that a model of this config was loaded from, for its drafter.

    Raises ConfigError when there is no drafter or when the checkpoint is another one, CheckpointError when an `mtp.*`
    tensor is missing or, at the end, was not read: output would still be right then, and only drafts bad.
    """
    if not config.num_draft_layers:
        raise ConfigError("num_nextn_predict_layers is 0; the checkpoint has no drafter")
    with Checkpoint.open(path) as checkpoint:
        if checkpoint.config != config:
            raise ConfigError(f"{path}: config.json is not that of the model; both must be of one checkpoint")
        source = TrackedSource(checkpoint)
        yield source
        unused = sorted(source.unused(name for name in checkpoint if _is_draft(name, config)))
    if unused:
        raise CheckpointError(f"{path}: draft tensors that nothing has read: {', '.join(unused)}")


def _is_draft(name: str, config: ModelConfig) -> bool:
    """Whether only a drafter can have a use for the tensor; tied copies of what the target model owns are ignored."""
    return name.startswith("mtp.") and tied_target(config, name) is None
