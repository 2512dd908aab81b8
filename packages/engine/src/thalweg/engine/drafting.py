"""Who proposes the drafts of a deployment, and how many: the checkpoint's drafter unless the caller brings one."""

from __future__ import annotations

import logging
from typing import TYPE_CHECKING

from thalweg.engine.config import EngineConfig
from thalweg.engine.sections import is_int
from thalweg.interfaces import CacheViews, ConfigError, Drafter, shown

if TYPE_CHECKING:
    from thalweg.engine.loading import LoadedDraftNetwork
    from thalweg.model import ModelConfig

_LOG = logging.getLogger(__name__)


def settle_config(config: EngineConfig, facts: ModelConfig, drafter: Drafter | None = None) -> EngineConfig:
    """The configuration for this checkpoint and this drafter; None = the checkpoint's.

    Raises ConfigError for options that they cannot serve.
    """
    if drafter is not None:
        _check_own(config, drafter, facts.num_hidden_layers)
    config = config.for_checkpoint(
        max_position_embeddings=facts.max_position_embeddings,
        draft_length=_longest_draft(facts) if drafter is None else drafter.draft_length,
    )
    options = config.speculation
    if options.draft_length:
        options.temperatures(options.draft_length)
    if options.variable_length and (options.verification, options.draft_positions) == ("rejection", "absolute"):
        _LOG.warning(
            "draft_positions is 'absolute' with variable_length: drafts of two steps share random numbers, and sampled "
            "text no longer follows the model's distribution"
        )
    return config


def cached_drafter(network: LoadedDraftNetwork, views: CacheViews, config: EngineConfig) -> Drafter:
    """The drafter of the checkpoint over a cache, for a settled configuration with drafts."""
    from thalweg.model import CachedDrafter

    draft_length = config.speculation.draft_length or 0
    return CachedDrafter(network, views, draft_length, config.speculation.temperatures(draft_length))


def _longest_draft(facts: ModelConfig) -> int:
    """Tokens that the checkpoint's drafter was trained to propose per step; 0 without one."""
    return facts.dspark_block_size if facts.num_draft_layers else 0


def _check_own(config: EngineConfig, drafter: Drafter, num_layers: int) -> None:
    """Raise ConfigError for options that a drafter of the caller's own does not follow, and layers that are missing."""
    missing = [layer for layer in drafter.target_layer_ids if not (is_int(layer) and 0 <= layer < num_layers)]
    if missing:
        raise ConfigError(
            f"target_layer_ids of the given drafter has {shown(missing[0])}; the model has layers 0 to {num_layers - 1}"
        )
    options = config.speculation
    if options.draft_length not in (None, drafter.draft_length):
        raise ConfigError(
            f"draft_length is {options.draft_length}; the given drafter proposes {drafter.draft_length} tokens"
        )
    if options.confidence_temperatures:
        raise ConfigError(
            f"confidence_temperatures is {options.confidence_temperatures}; they belong to the checkpoint's drafter, a "
            "given one scales its own confidences"
        )
