"""The config of a drafter beside that of its backbone, and the tensors that it adds."""

from __future__ import annotations

import dataclasses

from tools.train.common.dimensions import DRAFTER

from thalweg.interfaces import ConfigError
from thalweg.model import ModelConfig, TensorSpec, tensor_specs


def with_drafter(config: ModelConfig) -> ModelConfig:
    """The config with the draft layers of the small model; the last layers of the backbone are their targets.

    A config that has draft layers stays as it is. Raises ConfigError where the backbone has too few layers.
    """
    if config.num_draft_layers:
        return config
    keys = dict(DRAFTER)
    targets, layers = len(keys.pop("dspark_target_layer_ids")), config.num_hidden_layers
    if layers < targets:
        raise ConfigError(f"num_hidden_layers is {layers}; the drafter reads {targets} layers")
    return dataclasses.replace(
        config,
        **keys,
        dspark_target_layer_ids=tuple(range(layers - targets, layers)),
        compress_ratios=(*config.compress_ratios, *[0] * keys["num_nextn_predict_layers"]),
    )


def draft_specs(config: ModelConfig) -> dict[str, TensorSpec]:
    """The draft tensors of a checkpoint by name, without their scales."""
    return {spec.name: spec for spec in tensor_specs(config) if spec.module == "draft" and not spec.is_scale}
