"""The sizes that the FLOPs estimate needs, from the facts of a checkpoint."""

from __future__ import annotations

from typing import Literal

from thalweg.model import ModelConfig
from thalweg.model.topology import LayerTopology
from thalweg.scheduler.flops import FlopsLayer, FlopsModel


def flops_model(
    facts: ModelConfig, *, replay: Literal["off", "mask", "compact"] = "off", replay_keep_tokens: int = 0
) -> FlopsModel:
    """What a step of this checkpoint computes; the drafter is not counted.

    Formats are those of the checkpoint (FP8 projections and activations, FP4 index keys), whatever device computes:
    the estimate compares work, not carriers. Raises ConfigError for sizes beyond the estimate's bounds.
    """
    return FlopsModel(
        hidden_size=facts.hidden_size,
        vocab_size=facts.vocab_size,
        num_heads=facts.num_attention_heads,
        head_dim=facts.head_dim,
        query_rank=facts.q_lora_rank,
        output_rank=facts.o_lora_rank,
        output_groups=facts.o_groups,
        window_size=facts.sliding_window,
        expert_size=facts.moe_intermediate_size,
        experts_per_token=facts.num_experts_per_tok,
        shared_experts=facts.n_shared_experts,
        routed_experts=facts.n_routed_experts,
        layers=tuple(_layer(facts, layer) for layer in facts.topology.layers),
        first_consumer_layer=facts.topology.num_producer_layers,
        hyper_connections=facts.hc_mult,
        shifted_hyper_connections=facts.hc_shifted,
        engram_layers=facts.engram_layer_ids,
        engram_width=facts.engram_rows_per_token * facts.engram_head_dim,
        replay=replay,
        replay_keep_tokens=replay_keep_tokens,
    )


def _layer(facts: ModelConfig, layer: LayerTopology) -> FlopsLayer:
    if not layer.ratio:
        return FlopsLayer()
    is_limited = layer.candidate_source is not None
    return FlopsLayer(
        compress_ratio=layer.ratio,
        topk=facts.index_topk,
        index_heads=facts.index_n_heads,
        index_head_dim=facts.index_head_dim,
        is_kv_source=layer.is_kv_source,
        is_index_source=layer.is_index_source,
        is_index_key_source=layer.is_index_key_source,
        candidate_blocks=facts.candidate_topk_blocks if is_limited else 0,
        candidate_block_size=facts.candidate_block_size if is_limited else 0,
    )
