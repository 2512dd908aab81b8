"""The tensors that a checkpoint of a given config must hold: names, shapes, dtypes and storage formats."""

from __future__ import annotations

import math
import re
from collections.abc import Iterator
from dataclasses import dataclass
from typing import Literal, TypeAlias

from thalweg.model.config import ModelConfig

Format: TypeAlias = Literal["fp8", "fp4", "engram", "bf16", "f32"]
Module: TypeAlias = Literal[
    "embeddings",
    "norms",
    "attention",
    "compressor",
    "indexer",
    "router",
    "experts",
    "shared_experts",
    "hyper_connections",
    "engram",
    "draft",
    "vision",
]

ITEM_BYTES = {"F8_E4M3": 1, "F8_E8M0": 1, "I8": 1, "BF16": 2, "F32": 4}
"""Bytes per element of the dtypes a checkpoint uses, by their safetensors names."""
TILE = 32
"""Rows and columns that share one scale in FP8 weights; columns in FP4 and Engram rows."""
_DRAFT_EMBED = re.compile(r"mtp\.\d+\.embed\.weight")
_DRAFT_HEAD = re.compile(r"mtp\.\d+\.head\.weight")


@dataclass(frozen=True, slots=True)
class TensorSpec:
    """One tensor as it must be stored."""

    name: str
    dtype: str
    """safetensors name: F8_E4M3, F8_E8M0, I8, BF16 or F32."""
    shape: tuple[int, ...]
    """Stored shape: packed FP4 weights have half the columns of the matrix they stand for."""
    format: Format
    """Storage format of the weight this tensor is part of; a scale carries its weight's."""
    module: Module
    """The part of the model it belongs to; every `mtp.*` tensor is `draft`."""

    @property
    def num_bytes(self) -> int:
        """Payload size."""
        return math.prod(self.shape) * ITEM_BYTES[self.dtype]

    @property
    def is_scale(self) -> bool:
        """Whether this is the scale of a quantised weight."""
        return self.dtype == "F8_E8M0"


def tensor_specs(config: ModelConfig) -> Iterator[TensorSpec]:
    """Every tensor of a checkpoint, layer after layer.

    The released config yields 96,085 tensors of 510,286,023,000 bytes. Tied draft embeddings and heads, which a
    checkpoint may repeat, are not among them (see `tied_target`).
    """
    hidden, vocab = config.hidden_size, config.vocab_size
    yield _bf16("embed.weight", (vocab, hidden), "embeddings")
    if not config.tie_word_embeddings:
        yield _bf16("head.weight", (vocab, hidden), "embeddings")
    yield _bf16("norm.weight", (hidden,), "norms")
    for name in ("image_start", "image_end", "image_newline"):
        yield _bf16(name, (hidden,), "embeddings")
    for layer in range(config.num_hidden_layers):
        yield from _backbone_layer(config, layer)
    for index in range(config.num_nextn_predict_layers):
        yield from _draft_layer(config, index)
    if config.vision.num_hidden_layers:
        yield from _vision(config)


def tied_target(config: ModelConfig, name: str) -> str | None:
    """The tensor whose storage is used instead of `name`, when `name` is a copy that a checkpoint may also hold."""
    head = "embed.weight" if config.tie_word_embeddings else "head.weight"
    if _DRAFT_EMBED.fullmatch(name):
        return "embed.weight"
    if _DRAFT_HEAD.fullmatch(name) or (name == "head.weight" and config.tie_word_embeddings):
        return head
    return None


def scale_name(weight_name: str) -> str:
    """The name of a quantised weight's scale."""
    return weight_name.removesuffix(".weight") + ".scale"


def _bf16(name: str, shape: tuple[int, ...], module: Module) -> TensorSpec:
    return TensorSpec(name, "BF16", shape, "bf16", module)


def _f32(name: str, shape: tuple[int, ...], module: Module) -> TensorSpec:
    return TensorSpec(name, "F32", shape, "f32", module)


def _tiles(size: int) -> int:
    return -(-size // TILE)


def _fp8(name: str, rows: int, columns: int, module: Module) -> Iterator[TensorSpec]:
    yield TensorSpec(f"{name}.weight", "F8_E4M3", (rows, columns), "fp8", module)
    yield TensorSpec(f"{name}.scale", "F8_E8M0", (_tiles(rows), _tiles(columns)), "fp8", module)


def _fp4(name: str, rows: int, columns: int, module: Module) -> Iterator[TensorSpec]:
    yield TensorSpec(f"{name}.weight", "I8", (rows, columns // 2), "fp4", module)
    yield TensorSpec(f"{name}.scale", "F8_E8M0", (rows, columns // TILE), "fp4", module)


def _backbone_layer(config: ModelConfig, layer: int) -> Iterator[TensorSpec]:
    prefix = f"layers.{layer}."
    kind = config.topology[layer]
    hidden, dim, index_dim = config.hidden_size, config.head_dim, config.index_head_dim
    yield from _block(config, prefix, config.n_routed_experts, draft=False)
    if kind.is_kv_source:
        yield _bf16(f"{prefix}attn.compressor.wkv.weight", (dim, hidden), "compressor")
        if kind.has_gate:
            yield _bf16(f"{prefix}attn.compressor.wgate.weight", (dim, hidden), "compressor")
        yield _bf16(f"{prefix}attn.compressor.norm.weight", (dim,), "compressor")
    if kind.is_index_source:
        heads = config.index_n_heads
        yield from _fp8(f"{prefix}attn.indexer.wq_b", heads * index_dim, config.q_lora_rank, "indexer")
        yield _bf16(f"{prefix}attn.indexer.weights_proj.weight", (heads, hidden), "indexer")
    if kind.is_index_key_source:
        yield _bf16(f"{prefix}attn.indexer.wk.weight", (index_dim, dim), "indexer")
        yield _bf16(f"{prefix}attn.indexer.k_norm.weight", (index_dim,), "indexer")
    if kind.engram_index is not None:
        yield from _engram(config, prefix, config.engram_num_embeddings[kind.engram_index])


def _block(config: ModelConfig, prefix: str, num_experts: int, *, draft: bool) -> Iterator[TensorSpec]:
    """What backbone and draft layers have in common: norms, hyper-connections, attention, experts."""

    def module(name: Module) -> Module:
        return "draft" if draft else name

    hidden, streams = config.hidden_size, config.hc_mult
    query, heads, dim = config.q_lora_rank, config.num_attention_heads, config.head_dim
    output = config.o_groups * config.o_lora_rank
    attention = module("attention")
    mixes = (2 + streams) * streams
    for part in ("attn", "ffn"):
        yield _bf16(f"{prefix}{part}_norm.weight", (hidden,), module("norms"))
        yield _f32(f"{prefix}hc_{part}_fn", (mixes, streams * hidden), module("hyper_connections"))
        yield _f32(f"{prefix}hc_{part}_scale", (3,), module("hyper_connections"))
        yield _f32(f"{prefix}hc_{part}_base", (mixes,), module("hyper_connections"))
    yield from _fp8(f"{prefix}attn.wq_a", query, hidden, attention)
    yield _bf16(f"{prefix}attn.q_norm.weight", (query,), attention)
    yield from _fp8(f"{prefix}attn.wq_b", heads * dim, query, attention)
    yield from _fp8(f"{prefix}attn.wkv", dim, hidden, attention)
    yield _bf16(f"{prefix}attn.kv_norm.weight", (dim,), attention)
    yield _f32(f"{prefix}attn.attn_sink", (heads,), attention)
    yield from _fp8(f"{prefix}attn.wo_a", output, heads // config.o_groups * dim, attention)
    yield from _fp8(f"{prefix}attn.wo_b", hidden, output, attention)
    yield _bf16(f"{prefix}ffn.gate.weight", (num_experts, hidden), module("router"))
    yield _f32(f"{prefix}ffn.gate.bias", (num_experts,), module("router"))
    yield _f32(f"{prefix}ffn.gate.bias_vl", (num_experts,), module("router"))
    inner = config.moe_intermediate_size
    for expert in range(num_experts):
        for matrix, rows, columns in (("w1", inner, hidden), ("w2", hidden, inner), ("w3", inner, hidden)):
            yield from _fp4(f"{prefix}ffn.experts.{expert}.{matrix}", rows, columns, module("experts"))
    for matrix, rows, columns in (("w1", inner, hidden), ("w2", hidden, inner), ("w3", inner, hidden)):
        yield from _fp8(f"{prefix}ffn.shared_experts.{matrix}", rows, columns, module("shared_experts"))


def _engram(config: ModelConfig, prefix: str, rows: int) -> Iterator[TensorSpec]:
    hidden, streams, width = config.hidden_size, config.hc_mult, config.engram_head_dim
    yield TensorSpec(f"{prefix}engram.embed.weight", "F8_E4M3", (rows, width), "engram", "engram")
    yield TensorSpec(f"{prefix}engram.embed.scale", "F8_E8M0", (rows, width // TILE), "engram", "engram")
    yield from _fp8(f"{prefix}engram.wkv", hidden * (streams + 1), config.engram_rows_per_token * width, "engram")
    yield _bf16(f"{prefix}engram.q_weight", (streams, hidden), "engram")
    yield _bf16(f"{prefix}engram.k_weight", (streams, hidden), "engram")


def _draft_layer(config: ModelConfig, index: int) -> Iterator[TensorSpec]:
    prefix = f"mtp.{index}."
    hidden, rank = config.hidden_size, config.dspark_markov_rank
    yield from _block(config, prefix, config.dspark_n_routed_experts, draft=True)
    if index == 0:
        yield from _fp8(f"{prefix}main_proj", hidden, len(config.dspark_target_layer_ids) * hidden, "draft")
        yield _bf16(f"{prefix}main_norm.weight", (hidden,), "draft")
    if index == config.num_nextn_predict_layers - 1:
        yield _bf16(f"{prefix}norm.weight", (hidden,), "draft")
        yield _bf16(f"{prefix}markov_head.embed.weight", (config.vocab_size, rank), "draft")
        yield _bf16(f"{prefix}markov_head.head.weight", (config.vocab_size, rank), "draft")
        yield _bf16(f"{prefix}confidence_head.proj.weight", (1, hidden + rank), "draft")


def _vision(config: ModelConfig) -> Iterator[TensorSpec]:
    vision = config.vision
    width, inner = vision.hidden_size, vision.intermediate_size

    def one(name: str, *shape: int) -> TensorSpec:
        return _bf16(name, shape, "vision")

    yield one("vision.patch_embed.proj.weight", width, 3 * vision.patch_size**2)
    yield one("vision.patch_embed.proj.bias", width)
    for block in range(vision.num_hidden_layers):
        prefix = f"vision.blocks.{block}."
        yield one(f"{prefix}attn.wqkv.weight", 3 * width, width)
        yield one(f"{prefix}attn.wqkv.bias", 3 * width)
        yield one(f"{prefix}attn.wo.weight", width, width)
        yield one(f"{prefix}attn.wo.bias", width)
        yield one(f"{prefix}mlp.w1.weight", 2 * inner, width)
        yield one(f"{prefix}mlp.w2.weight", width, inner)
        yield one(f"{prefix}norm1.weight", width)
        yield one(f"{prefix}norm2.weight", width)
    yield one("vision.norm.weight", width)
    yield one("aligner.w1.weight", config.hidden_size, vision.downsample_ratio**2 * width)
    yield one("aligner.w1.bias", config.hidden_size)
    yield one("aligner.w2.weight", config.hidden_size, config.hidden_size)
    yield one("aligner.w2.bias", config.hidden_size)
