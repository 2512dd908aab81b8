"""Random checkpoints of any small config, in the real format: what tests and first experiments run on."""

from __future__ import annotations

import json
from collections.abc import Callable, Iterator
from dataclasses import replace
from pathlib import Path
from typing import Any

import torch

from thalweg.interfaces import ConfigError
from thalweg.kernels.reference.quant import quantize_fp8_weight, quantize_mxfp4, quantize_mxfp8
from thalweg.model.config import ModelConfig
from thalweg.model.engram_layout import EngramLayout
from thalweg.model.engram_vocabulary import TOKENIZER_NAME, EngramVocabulary
from thalweg.model.names import TensorSpec, scale_name, tensor_specs
from thalweg.model.random_values import random_values, tensor_seed
from thalweg.model.safetensors_writer import write_index, write_shard
from thalweg.model.tiny_tokenizer import write_tokenizer

_SHARD_BYTES = 1 << 20
_Stored = tuple[str, tuple[int, ...], bytes]

_DOCUMENT: dict[str, Any] = {
    "architectures": ["DeepseekV41ForCausalLM"],
    "model_type": "deepseek_v41",
    "dtype": "bfloat16",
    "bos_token_id": 0,
    "eos_token_id": 1,
    "pad_token_id": 2,
    "image_token_id": 4,
    "quantization_config": {
        "quant_method": "fp8",
        "activation_scheme": "dynamic",
        "weight_block_size": [32, 32],
        "scale_fmt": "ue8m0",
        "expert_dtype": "fp4",
    },
    "vision_config": {
        "num_hidden_layers": 0,
        "hidden_size": 64,
        "num_attention_heads": 4,
        "intermediate_size": 128,
        "patch_size": 14,
        "rope_theta": 10000,
        "downsample_ratio": 3,
        "max_image_tokens": 64,
        "min_pixels": 3136,
    },
}
_TEXT: dict[str, Any] = {
    "model_type": "deepseek_v41_text",
    "vocab_size": 512,
    "hidden_size": 64,
    "num_hidden_layers": 8,
    "num_attention_heads": 4,
    "num_key_value_heads": 1,
    "head_dim": 64,
    "qk_rope_head_dim": 16,
    "q_lora_rank": 64,
    "o_groups": 2,
    "o_lora_rank": 32,
    "hidden_act": "silu",
    "swiglu_limit": 10.0,
    "rms_norm_eps": 1e-20,
    "max_position_embeddings": 4096,
    "rope_theta": 10000,
    "compress_rope_theta": 160000,
    "rope_scaling": {
        "rope_type": "yarn",
        "factor": 4,
        "beta_fast": 32,
        "beta_slow": 1,
        "original_max_position_embeddings": 1024,
    },
    "n_routed_experts": 8,
    "n_shared_experts": 1,
    "num_experts_per_tok": 2,
    "moe_intermediate_size": 64,
    "scoring_func": "sqrtsoftplus",
    "topk_method": "noaux_tc",
    "norm_topk_prob": True,
    "routed_scaling_factor": 1.5,
    "sliding_window": 16,
    "compress_ratios": [0, 0, 2, 2, 1, 1, 1, 1],
    "kv_source_layer_ids": [2, 4],
    "index_source_layer_ids": [2, 4, 6],
    "index_n_heads": 8,
    "index_head_dim": 32,
    "index_topk": 16,
    "candidate_source_layer_id": 4,
    "candidate_topk_blocks": 8,
    "candidate_block_size": 8,
    "hc_mult": 4,
    "hc_sinkhorn_iters": 20,
    "hc_eps": 1e-6,
    "engram_layer_ids": [1, 3],
    "engram_max_ngram_size": 3,
    "engram_vocab_size": 50,
    "engram_n_heads": 2,
    "engram_head_dim": 32,
    "engram_pad_token_id": 2,
}
_DRAFTS: dict[str, Any] = {
    "dspark_block_size": 5,
    "dspark_markov_rank": 32,
    "dspark_n_routed_experts": 4,
    "dspark_num_experts_per_tok": 2,
    "dspark_noise_token_id": 3,
}
_NUM_TARGET_LAYERS = 3


def small_config(**text: Any) -> ModelConfig:
    """A config of about 1.5 MB in which every mechanism is live within a hundred tokens.

    text: keys of text_config to change. `engram_num_embeddings` is computed from the others unless it is given. With
    `num_nextn_predict_layers` above 0 there are draft layers; `dspark_*` keys and the zeros that such layers have in
    `compress_ratios` are added where they are missing, and the last three layers are the target layers.
    """
    section = _TEXT | text
    if section.get("num_nextn_predict_layers"):
        section = _with_drafts(section)
    if section["engram_layer_ids"] and "engram_num_embeddings" not in text:
        layout = EngramLayout.compute(
            len(section["engram_layer_ids"]),
            section["engram_max_ngram_size"],
            section["engram_n_heads"],
            section["engram_vocab_size"],
        )
        section["engram_num_embeddings"] = list(layout.num_rows)
    return ModelConfig.from_dict(_DOCUMENT | {"text_config": section})


def _with_drafts(section: dict[str, Any]) -> dict[str, Any]:
    layers, ratios = section["num_hidden_layers"], section["compress_ratios"]
    defaults = _DRAFTS | {"dspark_target_layer_ids": list(range(max(layers - _NUM_TARGET_LAYERS, 0), layers))}
    if len(ratios) == layers:
        ratios = [*ratios, *[0] * section["num_nextn_predict_layers"]]
    return defaults | section | {"compress_ratios": ratios}


def write_random_checkpoint(directory: str | Path, config: ModelConfig | None = None, seed: int = 0) -> ModelConfig:
    """Write config.json, tokenizer.json, shards and index; returns the config as written.

    config: `small_config()` when not given; its engram_compressed_vocab_size is replaced by that of the tokenizer
    written here. A tensor's values depend on seed and name alone. Raises ConfigError when the directory is not empty.
    """
    target = Path(directory)
    if target.exists() and (not target.is_dir() or any(target.iterdir())):
        raise ConfigError(f"directory is {str(target)!r}; it must be empty or not exist yet")
    config = small_config() if config is None else config
    target.mkdir(parents=True, exist_ok=True)
    write_tokenizer(target / TOKENIZER_NAME, config)
    if config.engram_layer_ids:
        vocabulary = EngramVocabulary.from_tokenizer_file(target / TOKENIZER_NAME, config.engram_pad_token_id)
        config = replace(config, engram_compressed_vocab_size=vocabulary.size)
    (target / "config.json").write_text(json.dumps(config.to_dict(), indent=2) + "\n", encoding="utf-8")
    groups = _whole_layers(config)
    shard_of: dict[str, str] = {}
    total = 0
    for number, specs in enumerate(groups, 1):
        shard = f"model-{number:05d}-of-{len(groups):05d}.safetensors"
        stored = dict(_stored(specs, seed))
        total += write_shard(target / shard, stored)
        shard_of |= dict.fromkeys(stored, shard)
    write_index(target, shard_of, total)
    return config


def _whole_layers(config: ModelConfig) -> list[list[TensorSpec]]:
    """The tensors cut into files; a layer is never divided, so a table and its scales stay together."""
    groups: list[list[TensorSpec]] = [[]]
    size, last = 0, ""
    for spec in tensor_specs(config):
        part = ".".join(spec.name.split(".")[:2]) if spec.name.startswith(("layers.", "mtp.")) else ""
        if part != last and size >= _SHARD_BYTES:
            groups.append([])
            size = 0
        groups[-1].append(spec)
        size += spec.num_bytes
        last = part
    return groups


def _stored(specs: list[TensorSpec], seed: int) -> Iterator[tuple[str, _Stored]]:
    """Name and stored form of each tensor; a scale comes with its weight."""
    shapes = {spec.name: spec.shape for spec in specs}
    for spec in specs:
        if spec.is_scale:
            continue
        values = random_values(spec, torch.Generator().manual_seed(tensor_seed(seed, spec.name)))
        if spec.format in ("bf16", "f32"):
            yield spec.name, (spec.dtype, spec.shape, _raw(values.to(_DTYPES[spec.dtype])))
            continue
        codes, scales = _QUANTIZERS[spec.format](values)
        scale = scale_name(spec.name)
        yield spec.name, (spec.dtype, spec.shape, _raw(codes))
        yield scale, ("F8_E8M0", shapes[scale], _raw(scales))


_DTYPES = {"BF16": torch.bfloat16, "F32": torch.float32}
_QUANTIZERS: dict[str, Callable[[torch.Tensor], tuple[torch.Tensor, torch.Tensor]]] = {
    "fp8": quantize_fp8_weight,
    "fp4": quantize_mxfp4,
    "engram": quantize_mxfp8,
}


def _raw(tensor: torch.Tensor) -> bytes:
    return tensor.contiguous().view(torch.uint8).numpy().tobytes()
