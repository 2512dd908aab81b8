"""Puts layers and heads together: which weights and which facts of the config each part gets."""

from __future__ import annotations

import torch

from thalweg.model.attention import Attention, AttentionWeights
from thalweg.model.compressor import Compressor
from thalweg.model.config import ModelConfig
from thalweg.model.engram import Engram, EngramHash
from thalweg.model.engram_layout import hash_multipliers
from thalweg.model.heads import Embedding, Head
from thalweg.model.hyper_connections import HyperConnection
from thalweg.model.indexer import CandidateRole, Indexer, IndexKeyProjection
from thalweg.model.layer import Layer
from thalweg.model.moe import MixtureOfExperts, Router
from thalweg.model.numerics import Numerics
from thalweg.model.topology import LayerTopology
from thalweg.model.weights import Weights


def build_embedding(config: ModelConfig, weights: Weights, numerics: Numerics) -> Embedding:
    """The token table."""
    return Embedding(weights.plain("embed.weight"), numerics)


def build_head(config: ModelConfig, weights: Weights, numerics: Numerics) -> Head:
    """The final norm and the language-model head, which may be the token table."""
    tied = config.tie_word_embeddings
    weight = weights.parameters["embed.weight"] if tied else weights.plain("head.weight")
    return Head(weights.plain("norm.weight"), weight, norm_eps=config.rms_norm_eps, numerics=numerics)


def build_layer(
    config: ModelConfig,
    index: int,
    weights: Weights,
    numerics: Numerics,
    compressed_vocab_size: int,
    experts: type[MixtureOfExperts] = MixtureOfExperts,
) -> Layer:
    """A run-time layer: of the backbone or, from num_hidden_layers on, of the drafter.

    compressed_vocab_size: of the Engram vocabulary; not used in layers without Engram. experts: who computes them.
    """
    kind, prefix = kind_and_prefix(config, index)
    engram = None
    if kind.engram_index is not None:
        engram = _engram(config, index, kind.engram_index, weights, numerics, compressed_vocab_size)
    return Layer(
        index,
        engram,
        _connection(config, f"{prefix}hc_attn", weights, numerics),
        weights.plain(f"{prefix}attn_norm.weight"),
        _attention(config, kind, f"{prefix}attn.", weights, numerics),
        _connection(config, f"{prefix}hc_ffn", weights, numerics),
        weights.plain(f"{prefix}ffn_norm.weight"),
        _experts(config, index, f"{prefix}ffn.", weights, numerics, experts),
        norm_eps=config.rms_norm_eps,
        numerics=numerics,
        starts_consumers=index == config.topology.num_producer_layers < config.num_hidden_layers,
    )


def kind_and_prefix(config: ModelConfig, index: int) -> tuple[LayerTopology, str]:
    """What a run-time layer is, and what the checkpoint puts before the names of its tensors."""
    if index < config.num_hidden_layers:
        return config.topology[index], f"layers.{index}."
    return LayerTopology.window_only(index), f"mtp.{index - config.num_hidden_layers}."


def candidate_role(kind: LayerTopology) -> CandidateRole:
    """What the indexer of a layer does with candidate blocks."""
    if kind.produces_candidates:
        return CandidateRole.PUBLISH
    return CandidateRole.NONE if kind.candidate_source is None else CandidateRole.RESTRICT


def _connection(config: ModelConfig, prefix: str, weights: Weights, numerics: Numerics) -> HyperConnection:
    return HyperConnection(
        weights.plain(f"{prefix}_fn"),
        weights.plain(f"{prefix}_scale"),
        weights.plain(f"{prefix}_base"),
        norm_eps=config.rms_norm_eps,
        mix_eps=config.hc_eps,
        iterations=config.hc_sinkhorn_iters,
        numerics=numerics,
    )


def _attention(
    config: ModelConfig, kind: LayerTopology, prefix: str, weights: Weights, numerics: Numerics
) -> Attention:
    return Attention(
        kind.layer,
        kind.ratio,
        kind.kv_source if kind.ratio else None,
        AttentionWeights(
            down=weights.fp8(f"{prefix}wq_a", f"{prefix}wkv"),
            query_norm=weights.plain(f"{prefix}q_norm.weight"),
            query_up=weights.fp8(f"{prefix}wq_b"),
            key_norm=weights.plain(f"{prefix}kv_norm.weight"),
            sink=weights.plain(f"{prefix}attn_sink"),
            group_outputs=weights.fp8_blocks(f"{prefix}wo_a", config.o_groups),
            output=weights.fp8(f"{prefix}wo_b"),
        ),
        _compressor(config, kind, f"{prefix}compressor.", weights, numerics) if kind.is_kv_source else None,
        _indexer(config, kind, f"{prefix}indexer.", weights, numerics) if kind.is_index_source else None,
        num_heads=config.num_attention_heads,
        norm_eps=config.rms_norm_eps,
        numerics=numerics,
    )


def _compressor(
    config: ModelConfig, kind: LayerTopology, prefix: str, weights: Weights, numerics: Numerics
) -> Compressor:
    names = [f"{prefix}wkv.weight"]
    if kind.has_gate:
        names.insert(0, f"{prefix}wgate.weight")
    return Compressor(
        kind.layer,
        kind.ratio,
        weights.plain(*names),
        weights.plain(f"{prefix}norm.weight"),
        norm_eps=config.rms_norm_eps,
        numerics=numerics,
    )


def _indexer(config: ModelConfig, kind: LayerTopology, prefix: str, weights: Weights, numerics: Numerics) -> Indexer:
    keys = None
    if kind.is_index_key_source:
        keys = IndexKeyProjection(weights.plain(f"{prefix}wk.weight"), weights.plain(f"{prefix}k_norm.weight"))
    assert kind.index_key_source is not None
    return Indexer(
        kind.layer,
        kind.ratio,
        kind.index_key_source,
        weights.fp8(f"{prefix}wq_b"),
        weights.plain(f"{prefix}weights_proj.weight"),
        keys,
        num_heads=config.index_n_heads,
        topk=config.index_topk,
        candidates=candidate_role(kind),
        block_size=config.candidate_block_size,
        topk_blocks=config.candidate_topk_blocks,
        norm_eps=config.rms_norm_eps,
        numerics=numerics,
    )


def _experts(
    config: ModelConfig, index: int, prefix: str, weights: Weights, numerics: Numerics, kind: type[MixtureOfExperts]
) -> MixtureOfExperts:
    router = Router(
        weights.plain(f"{prefix}gate.weight"),
        weights.plain(f"{prefix}gate.bias"),
        weights.plain(f"{prefix}gate.bias_vl"),
        experts_per_token=config.experts_per_token(index),
        scaling=config.routed_scaling_factor,
        numerics=numerics,
    )
    names = [f"{prefix}experts.{expert}" for expert in range(config.experts(index))]
    return kind(
        index,
        router,
        tuple(weights.fp4(f"{name}.w1", f"{name}.w3") for name in names),
        tuple(weights.fp4(f"{name}.w2") for name in names),
        weights.fp8(f"{prefix}shared_experts.w1", f"{prefix}shared_experts.w3"),
        weights.fp8(f"{prefix}shared_experts.w2"),
        limit=config.swiglu_limit,
        numerics=numerics,
    )


def _engram(
    config: ModelConfig, index: int, engram_index: int, weights: Weights, numerics: Numerics, compressed_vocab_size: int
) -> Engram:
    prefix = f"layers.{index}.engram."
    layout = config.engram_layout
    table = weights.engram_table(f"{prefix}embed")
    constants = (
        hash_multipliers(index, config.engram_max_ngram_size, compressed_vocab_size),
        layout.flat_primes(engram_index),
        layout.offsets(engram_index),
    )
    return Engram(
        index,
        EngramHash(*(torch.from_numpy(values).to(table.device) for values in constants)),
        table,
        weights.fp8(f"{prefix}wkv"),
        weights.plain(f"{prefix}q_weight"),
        weights.plain(f"{prefix}k_weight"),
        norm_eps=config.rms_norm_eps,
        numerics=numerics,
    )
