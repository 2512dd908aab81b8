"""Puts layers together: which weights and which facts of the config each part gets."""

from __future__ import annotations

import torch

from thalweg.model.assembly import candidate_role, kind_and_prefix
from thalweg.model.config import ModelConfig
from thalweg.model.engram import EngramHash
from thalweg.model.engram_layout import hash_multipliers
from thalweg.model.native.attention import Attention, AttentionWeights
from thalweg.model.native.compressor import Compressor
from thalweg.model.native.engram import Engram
from thalweg.model.native.indexer import Indexer, IndexKeyProjection
from thalweg.model.native.layer import HyperConnection, Layer
from thalweg.model.native.memory import KeyNorm
from thalweg.model.native.moe import MixtureOfExperts, Router
from thalweg.model.native.weights import DeviceWeights
from thalweg.model.topology import LayerTopology


def build_layers(
    config: ModelConfig, indices: range, weights: DeviceWeights, last_norm: torch.Tensor, compressed_vocab_size: int
) -> list[Layer]:
    """Consecutive run-time layers: of the backbone or, from num_hidden_layers on, of the drafter.

    last_norm: [h], with which the last layer's output is read. compressed_vocab_size: of the Engram vocabulary; not
    used without Engram layers.
    """
    norms = [weights.plain(f"{kind_and_prefix(config, index)[1]}attn_norm.weight") for index in indices]
    following = [*norms[1:], last_norm]
    return [
        _layer(config, index, weights, norm, next_norm, compressed_vocab_size)
        for index, norm, next_norm in zip(indices, norms, following, strict=True)
    ]


def _layer(
    config: ModelConfig,
    index: int,
    weights: DeviceWeights,
    attention_norm: torch.Tensor,
    next_norm: torch.Tensor,
    compressed_vocab_size: int,
) -> Layer:
    kind, prefix = kind_and_prefix(config, index)
    engram = None
    if kind.engram_index is not None:
        engram = _engram(config, index, kind.engram_index, weights, compressed_vocab_size)
    return Layer(
        index,
        engram,
        _connection(config, f"{prefix}hc_attn", weights),
        attention_norm,
        _attention(config, kind, f"{prefix}attn.", weights),
        _connection(config, f"{prefix}hc_ffn", weights),
        weights.plain(f"{prefix}ffn_norm.weight"),
        _experts(config, index, f"{prefix}ffn.", weights),
        next_norm,
        norm_eps=config.rms_norm_eps,
        starts_consumers=index == config.topology.num_producer_layers < config.num_hidden_layers,
    )


def _connection(config: ModelConfig, prefix: str, weights: DeviceWeights) -> HyperConnection:
    return HyperConnection(
        weights.plain(f"{prefix}_fn"),
        weights.plain(f"{prefix}_scale"),
        weights.plain(f"{prefix}_base"),
        norm_eps=config.rms_norm_eps,
        mix_eps=config.hc_eps,
        iterations=config.hc_sinkhorn_iters,
    )


def _attention(config: ModelConfig, kind: LayerTopology, prefix: str, weights: DeviceWeights) -> Attention:
    return Attention(
        kind.layer,
        kind.ratio,
        kind.kv_source,
        AttentionWeights(
            down=weights.fp8(f"{prefix}wq_a", f"{prefix}wkv"),
            query_norm=weights.plain(f"{prefix}q_norm.weight"),
            query_up=weights.fp8(f"{prefix}wq_b"),
            key_norm=weights.plain(f"{prefix}kv_norm.weight"),
            sink=weights.plain(f"{prefix}attn_sink"),
            group_outputs=weights.fp8(f"{prefix}wo_a"),
            output=weights.fp8(f"{prefix}wo_b"),
        ),
        _compressor(config, kind, f"{prefix}compressor.", weights) if kind.is_kv_source else None,
        _indexer(config, kind, f"{prefix}indexer.", weights) if kind.is_index_source else None,
        num_heads=config.num_attention_heads,
        head_dim=config.head_dim,
        num_groups=config.o_groups,
        norm_eps=config.rms_norm_eps,
    )


def _compressor(config: ModelConfig, kind: LayerTopology, prefix: str, weights: DeviceWeights) -> Compressor:
    names = [f"{prefix}wkv.weight"]
    if kind.has_gate:
        names.insert(0, f"{prefix}wgate.weight")
    norm = KeyNorm(weights.plain(f"{prefix}norm.weight"), config.rms_norm_eps)
    return Compressor(kind.layer, kind.ratio, weights.plain(*names), norm)


def _indexer(config: ModelConfig, kind: LayerTopology, prefix: str, weights: DeviceWeights) -> Indexer:
    keys = None
    if kind.is_index_key_source:
        norm = KeyNorm(weights.plain(f"{prefix}k_norm.weight"), config.rms_norm_eps)
        keys = IndexKeyProjection(weights.plain(f"{prefix}wk.weight"), norm)
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
    )


def _experts(config: ModelConfig, index: int, prefix: str, weights: DeviceWeights) -> MixtureOfExperts:
    router = Router(
        weights.plain(f"{prefix}gate.weight"),
        weights.plain(f"{prefix}gate.bias"),
        weights.plain(f"{prefix}gate.bias_vl"),
        experts_per_token=config.experts_per_token(index),
        scaling=config.routed_scaling_factor,
    )
    experts = [f"{prefix}experts.{expert}" for expert in range(config.experts(index))]
    return MixtureOfExperts(
        index,
        router,
        weights.experts([(f"{expert}.w1", f"{expert}.w3") for expert in experts]),
        weights.experts([(f"{expert}.w2",) for expert in experts]),
        weights.fp8(f"{prefix}shared_experts.w1", f"{prefix}shared_experts.w3"),
        weights.fp8(f"{prefix}shared_experts.w2"),
        num_experts=len(experts),
        limit=config.swiglu_limit,
    )


def _engram(
    config: ModelConfig, index: int, engram_index: int, weights: DeviceWeights, compressed_vocab_size: int
) -> Engram:
    prefix, layout = f"layers.{index}.engram.", config.engram_layout
    multipliers = hash_multipliers(index, config.engram_max_ngram_size, compressed_vocab_size)
    constants = (multipliers, layout.flat_primes(engram_index), layout.offsets(engram_index))
    return Engram(
        index,
        EngramHash(*(weights.moved(torch.from_numpy(values)) for values in constants)),
        weights.table(f"{prefix}embed"),
        weights.fp8(f"{prefix}wkv"),
        weights.plain(f"{prefix}q_weight"),
        weights.plain(f"{prefix}k_weight"),
        norm_eps=config.rms_norm_eps,
    )
