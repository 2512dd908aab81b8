"""config.json: what loads, what is refused and how the refusal reads."""

from __future__ import annotations

import copy
import dataclasses
import json
from pathlib import Path
from typing import Any

import pytest

from thalweg.interfaces import CheckpointError, ConfigError
from thalweg.model import ModelConfig, small_config

GOLDEN = Path(__file__).parent / "golden"


def changed(document: dict[str, Any], path: str, value: Any) -> dict[str, Any]:
    result = copy.deepcopy(document)
    *parents, leaf = path.split(".")
    target = result
    for parent in parents:
        target = target[parent]
    target[leaf] = value
    return result


def without(document: dict[str, Any], path: str) -> dict[str, Any]:
    result = changed(document, path, None)
    *parents, leaf = path.split(".")
    target = result
    for parent in parents:
        target = target[parent]
    del target[leaf]
    return result


def refusal(document: dict[str, Any]) -> str:
    with pytest.raises(ConfigError) as caught:
        ModelConfig.from_dict(document)
    return str(caught.value)


def test_the_released_config_loads_with_its_values(released: dict[str, Any]) -> None:
    config = ModelConfig.from_dict(released)
    for key, value in released["text_config"].items():
        if key in ("model_type", "rope_scaling"):
            continue
        found = getattr(config, key)
        assert (list(found) if isinstance(found, tuple) else found) == value, key
    assert config.rope_scaling is not None
    assert dataclasses.asdict(config.rope_scaling) == released["text_config"]["rope_scaling"]
    assert config.vision.num_hidden_layers == 32
    assert config.vision.max_wh_ratio is None
    assert config.tokenizer_compatibility == "release"
    assert config.index_k_source_layer_ids == (2, 8, 14, 20)
    assert config.hc_shifted
    assert config.use_fp4_sparse_kv
    assert config.engram_rows_per_token == 24


def test_a_config_survives_the_way_to_a_file_and_back(released: dict[str, Any], tmp_path: Path) -> None:
    for config in (ModelConfig.from_dict(released), small_config(), small_config(engram_layer_ids=[])):
        (tmp_path / "config.json").write_text(json.dumps(config.to_dict()))
        assert ModelConfig.from_file(tmp_path) == config
        assert hash(ModelConfig.from_file(tmp_path)) == hash(config)


EQUALITIES = [
    ("architectures", ["LlamaForCausalLM"], "DeepseekV41ForCausalLM"),
    ("architectures", ["DeepseekV41ForCausalLM", "DeepseekV41ForCausalLM"], "DeepseekV41ForCausalLM"),
    ("architectures", "DeepseekV41ForCausalLM", "DeepseekV41ForCausalLM"),
    ("model_type", "deepseek_v4", "'deepseek_v41'"),
    ("dtype", "float16", "'bfloat16'"),
    ("text_config.num_key_value_heads", 2, "only 1"),
    ("text_config.num_key_value_heads", True, "only 1"),
    ("text_config.hidden_act", "gelu", "'silu'"),
    ("text_config.attention_bias", True, "False"),
    ("text_config.attention_dropout", 0.1, "0.0"),
    ("text_config.scoring_func", "sigmoid", "'sqrtsoftplus'"),
    ("text_config.topk_method", "greedy", "'noaux_tc'"),
    ("text_config.norm_topk_prob", False, "True"),
    ("text_config.n_shared_experts", 2, "only 1"),
    ("text_config.hc_shifted", False, "True"),
    ("text_config.dspark_target_attn_input", False, "True"),
    ("text_config.rope_scaling.rope_type", "linear", "'yarn'"),
    ("text_config.engram_num_embeddings", [384006168, 384016681], "384016682"),
    ("quantization_config.quant_method", "awq", "'fp8'"),
    ("quantization_config.activation_scheme", "static", "'dynamic'"),
    ("quantization_config.weight_block_size", [128, 128], "[32, 32]"),
    ("quantization_config.scale_fmt", "float", "'ue8m0'"),
    ("quantization_config.expert_dtype", "fp8", "'fp4'"),
]


@pytest.mark.parametrize(("path", "value", "expected"), EQUALITIES)
def test_a_changed_fixed_value_is_refused_with_key_value_and_expectation(
    released: dict[str, Any], path: str, value: Any, expected: str
) -> None:
    message = refusal(changed(released, path, value))
    assert path in message
    assert repr(value) in message
    assert expected in message


HUGE = [
    ("text_config.vocab_size", 10**30),
    ("text_config.num_hidden_layers", 1025),
    ("text_config.n_routed_experts", 4097),
    ("text_config.n_routed_experts", 2**31),
    ("text_config.engram_max_ngram_size", 2**31),
    ("text_config.engram_n_heads", 2**63),
    ("text_config.engram_vocab_size", 10**29),
    ("text_config.engram_num_embeddings", [10**30, 384016682]),
    ("text_config.num_nextn_predict_layers", 2**40),
    ("text_config.dspark_n_routed_experts", 2**40),
    ("vision_config.num_hidden_layers", 2**31),
]


@pytest.mark.parametrize(("path", "value"), HUGE)
def test_a_number_beyond_any_checkpoint_is_refused_before_anything_is_counted_out(
    released: dict[str, Any], path: str, value: Any
) -> None:
    message = refusal(changed(released, path, value))
    assert path in message
    assert repr(value) in message
    assert " to " in message


BOUNDS = [
    ("bos_token_id", -1),
    ("eos_token_id", 129280),
    ("image_token_id", 0),
    ("tokenizer_compatibility", "new"),
    ("text_config.vocab_size", 0),
    ("text_config.vocab_size", 1.5),
    ("text_config.vocab_size", True),
    ("text_config.hidden_size", 5000),
    ("text_config.num_hidden_layers", 0),
    ("text_config.num_attention_heads", 63),
    ("text_config.head_dim", 500),
    ("text_config.qk_rope_head_dim", 63),
    ("text_config.qk_rope_head_dim", 130),
    ("text_config.q_lora_rank", 1000),
    ("text_config.o_lora_rank", 3),
    ("text_config.swiglu_limit", "10"),
    ("text_config.rms_norm_eps", float("nan")),
    ("text_config.max_position_embeddings", 0),
    ("text_config.rope_scaling", "yarn"),
    ("text_config.rope_scaling.factor", 0),
    ("text_config.tie_word_embeddings", 0),
    ("text_config.num_experts_per_tok", 385),
    ("text_config.moe_intermediate_size", 2300),
    ("text_config.sliding_window", 0),
    ("text_config.compress_ratios", [0, 2, 1]),
    ("text_config.compress_ratios", [0, 0] + [2] * 18 + [1] * 20 + [0, 0, 1]),
    ("text_config.compress_ratios", [0, 0] + [4] * 18 + [1] * 20 + [0, 0, 0]),
    ("text_config.kv_source_layer_ids", [8, 2, 14, 20]),
    ("text_config.index_head_dim", 100),
    ("text_config.index_topk", 0),
    ("text_config.candidate_topk_blocks", 0),
    ("text_config.candidate_topk_blocks", 2044),
    ("text_config.candidate_topk_blocks", 56),
    ("text_config.candidate_block_size", 0),
    ("text_config.candidate_block_size", 17),
    ("text_config.candidate_source_layer_id", "20"),
    ("text_config.hc_mult", 1),
    ("text_config.use_fp4_sparse_kv", "yes"),
    ("text_config.engram_layer_ids", [14, 1]),
    ("text_config.engram_num_embeddings", [384006168]),
    ("text_config.engram_max_ngram_size", 1),
    ("text_config.engram_head_dim", 100),
    ("text_config.engram_pad_token_id", 129280),
    ("text_config.engram_compressed_vocab_size", 0),
    ("text_config.num_nextn_predict_layers", -1),
    ("text_config.dspark_target_layer_ids", []),
    ("text_config.dspark_target_layer_ids", [38, 40]),
    ("text_config.dspark_num_experts_per_tok", 129),
    ("text_config.dspark_noise_token_id", 129280),
    ("vision_config.patch_size", 0),
    ("vision_config.downsample_ratio", 1.5),
    ("vision_config.max_image_tokens", -1),
    ("vision_config.min_pixels", None),
    ("vision_config.max_wh_ratio", 0.5),
    ("vision_config.hidden_size", 1000),
]


@pytest.mark.parametrize(("path", "value"), BOUNDS)
def test_a_value_out_of_bounds_is_refused_with_its_key(released: dict[str, Any], path: str, value: Any) -> None:
    message = refusal(changed(released, path, value))
    assert path in message
    assert "must" in message or "needed" in message


REQUIRED_TOP = [
    "architectures",
    "model_type",
    "dtype",
    "bos_token_id",
    "eos_token_id",
    "pad_token_id",
    "image_token_id",
]
OPTIONAL_TEXT = [
    "attention_bias",
    "attention_dropout",
    "tie_word_embeddings",
    "rope_scaling",
    "engram_layer_ids",
    "engram_compressed_vocab_size",
    "candidate_source_layer_id",
]


def test_each_missing_required_key_is_named(released: dict[str, Any]) -> None:
    paths = list(REQUIRED_TOP)
    for section in ("text_config", "vision_config", "quantization_config"):
        paths.append(section)
        paths += [f"{section}.{key}" for key in released[section]]
    for path in paths:
        section, _, key = path.rpartition(".")
        if key in OPTIONAL_TEXT or path in ("vision_config.model_type", "vision_config.max_wh_ratio"):
            continue
        if path == "text_config.num_nextn_predict_layers":
            continue
        message = refusal(without(released, path))
        assert f"{path} is missing" in message


@pytest.mark.parametrize("key", OPTIONAL_TEXT)
def test_keys_with_a_default_may_be_absent(released: dict[str, Any], key: str) -> None:
    ModelConfig.from_dict(without(released, f"text_config.{key}"))


def test_keys_of_a_feature_that_is_off_are_not_needed(released: dict[str, Any]) -> None:
    document = copy.deepcopy(released)
    text = document["text_config"]
    for key in list(text):
        if key.startswith(("dspark_", "engram_", "candidate_", "num_nextn")):
            del text[key]
    text["compress_ratios"] = text["compress_ratios"][:40]
    text["candidate_source_layer_id"] = -1
    config = ModelConfig.from_dict(document)
    assert config.candidate_source_layer_id is None
    assert config.num_draft_layers == 0
    assert config.engram_layer_ids == ()
    assert config.topology.candidate_source is None


def test_null_rope_scaling_means_plain_rotation(released: dict[str, Any]) -> None:
    assert ModelConfig.from_dict(changed(released, "text_config.rope_scaling", None)).rope_scaling is None


def test_a_checkpoint_without_a_vision_tower_is_accepted(released: dict[str, Any]) -> None:
    config = ModelConfig.from_dict(changed(released, "vision_config.num_hidden_layers", 0))
    assert config.vision.num_hidden_layers == 0


@pytest.mark.parametrize(
    ("key", "value", "reason"),
    [
        ("compress_overlap", True, "overlapping compression"),
        ("use_ape", True, "position tables"),
        ("compressor_ape", [1], "position tables"),
        ("num_hash_layers", 3, "hash-routed"),
        ("index_hadamard", True, "Hadamard"),
        ("n_group", 8, "expert groups"),
    ],
)
def test_features_of_older_models_are_refused(released: dict[str, Any], key: str, value: Any, reason: str) -> None:
    message = refusal(changed(released, f"text_config.{key}", value))
    assert f"text_config.{key}" in message
    assert reason in message


@pytest.mark.parametrize(("key", "value"), [("compress_overlap", False), ("num_hash_layers", 0), ("n_group", 1)])
def test_older_features_that_are_switched_off_do_no_harm(released: dict[str, Any], key: str, value: Any) -> None:
    ModelConfig.from_dict(changed(released, f"text_config.{key}", value))


def test_unknown_keys_are_ignored(released: dict[str, Any]) -> None:
    config = ModelConfig.from_dict(changed(released, "text_config.initializer_range", 0.02))
    assert config == ModelConfig.from_dict(released)


def test_values_are_checked_without_a_file_as_well() -> None:
    with pytest.raises(ConfigError, match=r"text_config\.hidden_size is 65; it must be a multiple of 32"):
        dataclasses.replace(small_config(), hidden_size=65)


def test_a_missing_file_and_broken_json_are_told_apart(tmp_path: Path) -> None:
    with pytest.raises(CheckpointError, match=r"config\.json: cannot be read"):
        ModelConfig.from_file(tmp_path)
    for broken in ("{", "[" * 100_000):
        (tmp_path / "config.json").write_text(broken)
        with pytest.raises(ConfigError, match="not valid JSON"):
            ModelConfig.from_file(tmp_path)
    (tmp_path / "config.json").write_text("[]")
    with pytest.raises(ConfigError, match="JSON object"):
        ModelConfig.from_file(tmp_path)
    with pytest.raises(ConfigError, match="text_config is 3"):
        ModelConfig.from_dict({"text_config": 3})


def test_the_reduced_golden_config_loads() -> None:
    config = ModelConfig.from_file(GOLDEN / "tiny_a")
    assert config.num_draft_layers == 1
    assert config.engram_layout.num_rows == (240, 306)
    assert [config.experts(layer) for layer in (0, 6, 7)] == [8, 8, 4]
