"""Reads the weights of a checkpoint as a configuration wants them: for the reference model, or for a device."""

from __future__ import annotations

from pathlib import Path

import torch

from thalweg.engine.config import EngineConfig
from thalweg.interfaces import Backend, CapacityError, ConfigError
from thalweg.kernels import BoundOps
from thalweg.model import DraftNetwork, Model, NativeDraftNetwork, NativeModel

LoadedModel = Model | NativeModel
LoadedDraftNetwork = DraftNetwork | NativeDraftNetwork


def load_model(path: Path, config: EngineConfig, backend: Backend, ops: BoundOps, num_positions: int) -> LoadedModel:
    """The model of a checkpoint, for a settled configuration. num_positions: of the longest sequence.

    Raises CheckpointError for a damaged checkpoint, CapacityError when the device is too small for it.
    """
    if config.arithmetic != "native":
        return Model.load(path, mode=config.mode, arithmetic=config.arithmetic, ops=ops)
    try:
        return NativeModel.load(path, ops, device=backend.device, num_positions=num_positions)
    except torch.OutOfMemoryError as error:
        raise _too_large(path, backend, error) from error


def load_draft_network(path: Path, model: LoadedModel, backend: Backend) -> LoadedDraftNetwork:
    """The network of the checkpoint's drafter, beside its model.

    Raises CheckpointError for a checkpoint whose draft tensors are not all there, or not all used.
    """
    if isinstance(model, Model):
        return DraftNetwork.load(path, model)
    try:
        return NativeDraftNetwork.load(path, model)
    except torch.OutOfMemoryError as error:
        raise _too_large(path, backend, error) from error


def check_given_model(model: LoadedModel, config: EngineConfig, num_positions: int) -> None:
    """Raise ConfigError for a model loaded before that is not of the configured arithmetic, or knows too few positions.

    num_positions: of the longest sequence.
    """
    if isinstance(model, NativeModel) != (config.arithmetic == "native"):
        raise ConfigError(
            f"arithmetic is {config.arithmetic!r}, and the given model is a {type(model).__name__}; 'native' goes with "
            "a NativeModel, anything else with a Model"
        )
    if isinstance(model, NativeModel) and model.num_positions < num_positions:
        raise ConfigError(
            f"the given model has num_positions {model.num_positions}; max_model_len {config.scheduler.max_model_len} "
            f"and drafts behind it need {num_positions}"
        )


def check_given_network(network: LoadedDraftNetwork, config: EngineConfig) -> None:
    """Raise ConfigError for a draft network loaded before that is not of the configured arithmetic."""
    if isinstance(network, NativeDraftNetwork) != (config.arithmetic == "native"):
        raise ConfigError(
            f"arithmetic is {config.arithmetic!r}, and the given draft network is a {type(network).__name__}; 'native' "
            "goes with a NativeDraftNetwork, anything else with a DraftNetwork"
        )


def _too_large(path: Path, backend: Backend, error: torch.OutOfMemoryError) -> CapacityError:
    memory = backend.memory()
    found = "" if memory is None else f", which has {memory.total_bytes} bytes, {memory.free_bytes} of them free"
    return CapacityError(f"the weights of {path} do not fit on {backend.device}{found} ({error})")
