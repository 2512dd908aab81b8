"""Rules that tie several keys of config.json together, and the features of older models that are refused."""

from __future__ import annotations

import re
from collections.abc import Mapping
from typing import TYPE_CHECKING, Any

from thalweg.model.config_rules import reject

if TYPE_CHECKING:
    from thalweg.model.config import ModelConfig

_MAX_CANDIDATE_BLOCK = 16
_TILE = 32
_REFUSED = (
    (re.compile(r"overlap"), "overlapping compression does not exist in this architecture"),
    (
        re.compile(r"(^|_)(use_)?ape(_|$)|additive_position"),
        "additive position tables do not exist in this architecture",
    ),
    (re.compile(r"(num|n)_hash_layers"), "hash-routed layers do not exist in this architecture"),
    (re.compile(r"hadamard"), "the indexer of this architecture has no Hadamard transform"),
)
_GROUPED_ROUTING = ("n_group", "topk_group")


def reject_unsupported_features(section: Mapping[str, Any]) -> None:
    """Raise ConfigError when the text section asks for a feature this architecture does not have.

    section: the raw text_config; keys of that kind with a false, null or zero value are accepted.
    """
    for name, value in section.items():
        for pattern, reason in _REFUSED:
            if pattern.search(name) and value:
                reject(f"text_config.{name}", value, f"{reason}; remove it or set it to false")
    for name in _GROUPED_ROUTING:
        if section.get(name) not in (None, 1):
            reject(f"text_config.{name}", section[name], "expert groups do not exist in this architecture; only 1")


def check_text(config: ModelConfig) -> None:
    """Raise ConfigError unless the sizes of the text model fit each other. Single values are already checked."""
    for name in ("bos_token_id", "eos_token_id", "pad_token_id"):
        if getattr(config, name) >= config.vocab_size:
            reject(name, getattr(config, name), f"it must be below vocab_size = {config.vocab_size}")
    _check_attention(config)
    for name, limit in (
        ("num_experts_per_tok", config.n_routed_experts),
        ("qk_rope_head_dim", min(config.head_dim, config.index_head_dim)),
    ):
        if getattr(config, name) > limit:
            reject(f"text_config.{name}", getattr(config, name), f"it must be at most {limit}")
    _check_ratios(config)
    if config.engram_layer_ids:
        _check_engram(config)
    if config.candidate_source_layer_id is not None:
        _check_candidates(config)
    if config.num_nextn_predict_layers:
        _check_drafts(config)


def _check_attention(config: ModelConfig) -> None:
    if config.num_attention_heads % config.o_groups:
        reject(
            "text_config.num_attention_heads",
            config.num_attention_heads,
            f"it must be a multiple of o_groups = {config.o_groups}",
        )
    if config.o_groups * config.o_lora_rank % _TILE:
        reject(
            "text_config.o_lora_rank",
            config.o_lora_rank,
            f"o_groups * o_lora_rank must be a multiple of {_TILE}, it is {config.o_groups * config.o_lora_rank}",
        )


def _check_ratios(config: ModelConfig) -> None:
    name = "text_config.compress_ratios"
    ratios = config.compress_ratios
    expected = config.num_hidden_layers + config.num_nextn_predict_layers
    if len(ratios) != expected:
        reject(
            name,
            ratios,
            f"it has {len(ratios)} entries; num_hidden_layers + num_nextn_predict_layers = {expected} are needed",
        )
    if any(ratio not in (0, 1, 2) for ratio in ratios):
        reject(name, ratios, "each must be 0, 1 or 2")
    if any(ratios[config.num_hidden_layers :]):
        reject(name, ratios, "draft layers never compress: the entries after num_hidden_layers must be 0")


def _check_engram(config: ModelConfig) -> None:
    if config.hc_mult < 2:
        reject("text_config.hc_mult", config.hc_mult, "with Engram layers it must be at least 2")
    if len(config.engram_num_embeddings) != len(config.engram_layer_ids):
        reject(
            "text_config.engram_num_embeddings",
            config.engram_num_embeddings,
            f"it must have one entry per Engram layer, {len(config.engram_layer_ids)}",
        )
    if config.engram_pad_token_id >= config.vocab_size:
        reject(
            "text_config.engram_pad_token_id",
            config.engram_pad_token_id,
            f"it must be below vocab_size = {config.vocab_size}",
        )


def _check_candidates(config: ModelConfig) -> None:
    if config.candidate_block_size > _MAX_CANDIDATE_BLOCK:
        reject(
            "text_config.candidate_block_size",
            config.candidate_block_size,
            f"it must be at most {_MAX_CANDIDATE_BLOCK}",
        )
    capacity = config.candidate_topk_blocks * config.candidate_block_size
    if capacity < config.index_topk:
        reject(
            "text_config.candidate_topk_blocks",
            config.candidate_topk_blocks,
            f"blocks times candidate_block_size = {capacity} must be at least index_topk = {config.index_topk}",
        )


def _check_drafts(config: ModelConfig) -> None:
    targets = config.dspark_target_layer_ids
    if not targets or targets[-1] >= config.num_hidden_layers:
        reject(
            "text_config.dspark_target_layer_ids",
            targets,
            f"it must name at least one layer, each below num_hidden_layers = {config.num_hidden_layers}",
        )
    if config.dspark_num_experts_per_tok > config.dspark_n_routed_experts:
        reject(
            "text_config.dspark_num_experts_per_tok",
            config.dspark_num_experts_per_tok,
            f"it must be at most dspark_n_routed_experts = {config.dspark_n_routed_experts}",
        )
    if config.dspark_noise_token_id >= config.vocab_size:
        reject(
            "text_config.dspark_noise_token_id",
            config.dspark_noise_token_id,
            f"it must be below vocab_size = {config.vocab_size}",
        )
