"""The facts of a checkpoint, read from its config.json and validated; field names are the file's own keys."""

from __future__ import annotations

import dataclasses
import json
import logging
from collections.abc import Mapping
from dataclasses import MISSING, dataclass, field, fields
from pathlib import Path
from typing import Any

from thalweg.interfaces import CheckpointError, ConfigError
from thalweg.model.config_checks import check_text, reject_unsupported_features
from thalweg.model.config_rules import (
    Rule,
    boolean,
    equal,
    frozen,
    increasing,
    integer,
    integers,
    key,
    one_of,
    optional_integer,
    positive,
    ratio_or_null,
    reject,
    text,
)
from thalweg.model.engram_layout import EngramLayout, check_num_rows
from thalweg.model.topology import Topology, derive_topology

_LOG = logging.getLogger(__name__)
_TEXT = "text_config"
_MAX_LAYERS = 1024
_MAX_EXPERTS = 4096
_MAX_NGRAM = 16
_MAX_HASH_HEADS = 256


@dataclass(frozen=True, slots=True, kw_only=True)
class QuantizationConfig:
    """How weights are stored: FP8 in tiles of 32x32, experts in FP4. There is only one supported form."""

    quant_method: str = key(equal("fp8"))
    activation_scheme: str = key(equal("dynamic"))
    weight_block_size: tuple[int, ...] = key(equal((32, 32)))
    scale_fmt: str = key(equal("ue8m0"))
    expert_dtype: str = key(equal("fp4"))

    def __post_init__(self) -> None:
        _check_values(self, "quantization_config", {""})


@dataclass(frozen=True, slots=True, kw_only=True)
class RopeScaling:
    """YaRN parameters of the layers with a compress ratio above 0."""

    rope_type: str = key(equal("yarn"))
    factor: float = key(positive())
    beta_fast: float = key(positive())
    beta_slow: float = key(positive())
    original_max_position_embeddings: int = key(integer(1))

    def __post_init__(self) -> None:
        _check_values(self, "text_config.rope_scaling", {""})


_YARN_OR_NULL = Rule("it must be an object or null", lambda found: found is None or isinstance(found, RopeScaling))


@dataclass(frozen=True, slots=True, kw_only=True)
class VisionConfig:
    """The image tower and processor; `num_hidden_layers` 0 means that the checkpoint has no tower."""

    num_hidden_layers: int = key(integer(0, maximum=_MAX_LAYERS))
    hidden_size: int = key(integer(1))
    num_attention_heads: int = key(integer(1))
    intermediate_size: int = key(integer(1))
    patch_size: int = key(integer(1))
    rope_theta: float = key(positive())
    downsample_ratio: int = key(integer(1))
    max_image_tokens: int = key(integer(1))
    min_pixels: int = key(integer(1))
    max_wh_ratio: float | None = key(ratio_or_null(), default=None)
    model_type: str = key(text(), default="deepseek_v41_vision")

    def __post_init__(self) -> None:
        _check_values(self, "vision_config", {""})
        if self.num_hidden_layers and self.hidden_size % (4 * self.num_attention_heads):
            reject(
                "vision_config.hidden_size",
                self.hidden_size,
                f"with {self.num_attention_heads} heads it must be a multiple of {4 * self.num_attention_heads}",
            )


@dataclass(frozen=True, slots=True, kw_only=True)
class ModelConfig:
    """Everything the model needs to know about a checkpoint: its text model, and the nested vision part.

    Keys of a feature that is off (`engram_*`, `candidate_*`, `dspark_*`) have their defaults, whatever the file says.
    `topology` and `engram_layout` are derived.
    """

    architectures: tuple[str, ...] = key(equal(("DeepseekV41ForCausalLM",)))
    model_type: str = key(equal("deepseek_v41"))
    dtype: str = key(equal("bfloat16"))
    bos_token_id: int = key(integer(0))
    eos_token_id: int = key(integer(0))
    pad_token_id: int = key(integer(0))
    image_token_id: int = key(integer(1))
    tokenizer_compatibility: str = key(one_of("release", "native"), default="release")

    text_model_type: str = key(text(), section=_TEXT)
    vocab_size: int = key(integer(1), section=_TEXT)
    hidden_size: int = key(integer(32, 32), section=_TEXT)
    num_hidden_layers: int = key(integer(1, maximum=_MAX_LAYERS), section=_TEXT)
    num_attention_heads: int = key(integer(1), section=_TEXT)
    num_key_value_heads: int = key(equal(1), section=_TEXT)
    head_dim: int = key(integer(32, 32), section=_TEXT)
    qk_rope_head_dim: int = key(integer(2, 2), section=_TEXT)
    q_lora_rank: int = key(integer(32, 32), section=_TEXT)
    o_groups: int = key(integer(1), section=_TEXT)
    o_lora_rank: int = key(integer(1), section=_TEXT)
    hidden_act: str = key(equal("silu"), section=_TEXT)
    swiglu_limit: float = key(positive(), section=_TEXT)
    rms_norm_eps: float = key(positive(), section=_TEXT)
    attention_bias: bool = key(equal(False), section=_TEXT, default=False)
    attention_dropout: float = key(equal(0.0), section=_TEXT, default=0.0)
    max_position_embeddings: int = key(integer(1), section=_TEXT)
    rope_theta: float = key(positive(), section=_TEXT)
    compress_rope_theta: float = key(positive(), section=_TEXT)
    rope_scaling: RopeScaling | None = key(_YARN_OR_NULL, section=_TEXT, default=None)  # noqa: RUF009
    tie_word_embeddings: bool = key(boolean(), section=_TEXT, default=False)

    n_routed_experts: int = key(integer(1, maximum=_MAX_EXPERTS), section=_TEXT)
    n_shared_experts: int = key(equal(1), section=_TEXT)
    num_experts_per_tok: int = key(integer(1), section=_TEXT)
    moe_intermediate_size: int = key(integer(32, 32), section=_TEXT)
    scoring_func: str = key(equal("sqrtsoftplus"), section=_TEXT)
    topk_method: str = key(equal("noaux_tc"), section=_TEXT)
    norm_topk_prob: bool = key(equal(True), section=_TEXT)
    routed_scaling_factor: float = key(positive(), section=_TEXT)

    sliding_window: int = key(integer(1), section=_TEXT)
    compress_ratios: tuple[int, ...] = key(integers(0), section=_TEXT)
    kv_source_layer_ids: tuple[int, ...] = key(increasing(0), section=_TEXT)
    index_source_layer_ids: tuple[int, ...] = key(increasing(0), section=_TEXT)
    index_k_source_layer_ids: tuple[int, ...] = key(increasing(0), section=_TEXT, default=None)
    index_n_heads: int = key(integer(1), section=_TEXT)
    index_head_dim: int = key(integer(32, 32), section=_TEXT)
    index_topk: int = key(integer(1), section=_TEXT)
    candidate_source_layer_id: int | None = key(optional_integer(0), section=_TEXT, default=None)
    candidate_topk_blocks: int = key(integer(8, 8), section=_TEXT, group="candidates", default=0)
    candidate_block_size: int = key(integer(1), section=_TEXT, group="candidates", default=0)
    use_fp4_sparse_kv: bool = key(boolean(), section=_TEXT, default=True)

    hc_mult: int = key(integer(1), section=_TEXT)
    hc_sinkhorn_iters: int = key(integer(1), section=_TEXT)
    hc_eps: float = key(positive(), section=_TEXT)
    hc_shifted: bool = key(equal(True), section=_TEXT, default=True)

    engram_layer_ids: tuple[int, ...] = key(increasing(0), section=_TEXT, default=())
    engram_num_embeddings: tuple[int, ...] = key(integers(1), section=_TEXT, group="engram", default=())
    engram_max_ngram_size: int = key(integer(2, maximum=_MAX_NGRAM), section=_TEXT, group="engram", default=0)
    engram_vocab_size: int = key(integer(1), section=_TEXT, group="engram", default=0)
    engram_n_heads: int = key(integer(1, maximum=_MAX_HASH_HEADS), section=_TEXT, group="engram", default=0)
    engram_head_dim: int = key(integer(32, 32), section=_TEXT, group="engram", default=0)
    engram_pad_token_id: int = key(integer(0), section=_TEXT, group="engram", default=0)
    engram_compressed_vocab_size: int | None = key(optional_integer(1), section=_TEXT, default=None)

    num_nextn_predict_layers: int = key(integer(0, maximum=_MAX_LAYERS), section=_TEXT, default=0)
    dspark_block_size: int = key(integer(1), section=_TEXT, group="drafts", default=0)
    dspark_markov_rank: int = key(integer(1), section=_TEXT, group="drafts", default=0)
    dspark_target_layer_ids: tuple[int, ...] = key(increasing(0), section=_TEXT, group="drafts", default=())
    dspark_n_routed_experts: int = key(integer(1, maximum=_MAX_EXPERTS), section=_TEXT, group="drafts", default=0)
    dspark_num_experts_per_tok: int = key(integer(1), section=_TEXT, group="drafts", default=0)
    dspark_noise_token_id: int = key(integer(0), section=_TEXT, group="drafts", default=0)
    dspark_target_attn_input: bool = key(equal(True), section=_TEXT, default=True)

    quantization: QuantizationConfig
    vision: VisionConfig
    topology: Topology = field(init=False, repr=False, compare=False)
    engram_layout: EngramLayout = field(init=False, repr=False, compare=False)

    def __post_init__(self) -> None:
        if self.index_k_source_layer_ids is None:
            object.__setattr__(self, "index_k_source_layer_ids", self.kv_source_layer_ids)
        groups = self._groups()
        for item in fields(self):
            if item.metadata.get("group") and item.metadata["group"] not in groups:
                object.__setattr__(self, item.name, item.default)
        _check_values(self, "", groups)
        check_text(self)
        topology = derive_topology(
            num_layers=self.num_hidden_layers,
            ratios=self.compress_ratios,
            kv_sources=self.kv_source_layer_ids,
            index_sources=self.index_source_layer_ids,
            index_key_sources=self.index_k_source_layer_ids,
            candidate_source=self.candidate_source_layer_id,
            engram_layers=self.engram_layer_ids,
        )
        layout = EngramLayout(())
        if self.engram_layer_ids:
            layout = EngramLayout.compute(
                len(self.engram_layer_ids), self.engram_max_ngram_size, self.engram_n_heads, self.engram_vocab_size
            )
            check_num_rows(self.engram_num_embeddings, layout)
        object.__setattr__(self, "topology", topology)
        object.__setattr__(self, "engram_layout", layout)

    @property
    def num_draft_layers(self) -> int:
        """Number of draft layers (`mtp.*`), not of draft tokens."""
        return self.num_nextn_predict_layers

    @property
    def engram_rows_per_token(self) -> int:
        """Table rows that one token reads: n-gram sizes times heads; 0 without Engram."""
        return max(self.engram_max_ngram_size - 1, 0) * self.engram_n_heads

    def experts(self, layer: int) -> int:
        """Routed experts of a layer; draft layers follow the backbone's."""
        return self.n_routed_experts if layer < self.num_hidden_layers else self.dspark_n_routed_experts

    def experts_per_token(self, layer: int) -> int:
        """Routed experts that each row of a layer visits; draft layers follow the backbone's."""
        return self.num_experts_per_tok if layer < self.num_hidden_layers else self.dspark_num_experts_per_tok

    @classmethod
    def from_file(cls, directory: str | Path) -> ModelConfig:
        """Read `config.json` of a checkpoint directory. Raises CheckpointError (no file) or ConfigError."""
        path = Path(directory) / "config.json"
        try:
            document = json.loads(path.read_text(encoding="utf-8"))
        except OSError as error:
            raise CheckpointError(
                f"{path}: cannot be read ({error.strerror}); a checkpoint needs its config.json"
            ) from error
        except (ValueError, RecursionError) as error:
            raise ConfigError(f"{path}: is not valid JSON ({error})") from error
        if not isinstance(document, dict):
            raise ConfigError(f"{path}: must hold a JSON object, not {type(document).__name__}")
        return cls.from_dict(document)

    @classmethod
    def from_dict(cls, document: Mapping[str, Any]) -> ModelConfig:
        """Build from the nested document of config.json. Raises ConfigError naming key, value and expectation."""
        text_section = _section(document, "text_config")
        reject_unsupported_features(text_section)
        values = _collect(cls, document, "", _active_groups(text_section), section="")
        values |= _collect(cls, text_section, "text_config", _active_groups(text_section), section=_TEXT)
        if values.get("candidate_source_layer_id") == -1:
            values["candidate_source_layer_id"] = None
        scaling = text_section.get("rope_scaling")
        if scaling is not None:
            if not isinstance(scaling, Mapping):
                reject("text_config.rope_scaling", scaling, _YARN_OR_NULL.expectation)
            values["rope_scaling"] = RopeScaling(**_collect(RopeScaling, scaling, "text_config.rope_scaling", set()))
        quantization = _section(document, "quantization_config")
        vision = _section(document, "vision_config")
        values["quantization"] = QuantizationConfig(
            **_collect(QuantizationConfig, quantization, "quantization_config", set())
        )
        values["vision"] = VisionConfig(**_collect(VisionConfig, vision, "vision_config", set()))
        return cls(**values)

    def to_dict(self) -> dict[str, Any]:
        """The nested document of config.json; `from_dict` of it gives an equal config."""
        document: dict[str, Any] = {}
        text_section: dict[str, Any] = {}
        for item in fields(self):
            if "rule" not in item.metadata:
                continue
            target = text_section if item.metadata["section"] == _TEXT else document
            group = item.metadata["group"]
            if not group or group in self._groups():
                target[_json_key(item.name)] = _plain(getattr(self, item.name))
        if self.engram_compressed_vocab_size is None:
            del text_section["engram_compressed_vocab_size"]
        document["quantization_config"] = _plain(self.quantization)
        document["text_config"] = text_section
        document["vision_config"] = _plain(self.vision)
        return document

    def _groups(self) -> set[str]:
        return _active_groups(
            {
                "engram_layer_ids": self.engram_layer_ids,
                "candidate_source_layer_id": self.candidate_source_layer_id,
                "num_nextn_predict_layers": self.num_nextn_predict_layers,
            }
        )


def _json_key(name: str) -> str:
    """The key of the file for a field: only the text section's model_type clashes with the top level's."""
    return "model_type" if name == "text_model_type" else name


def _active_groups(section: Mapping[str, Any]) -> set[str]:
    groups = {""}
    if section.get("engram_layer_ids"):
        groups.add("engram")
    if section.get("candidate_source_layer_id") not in (None, -1):
        groups.add("candidates")
    if section.get("num_nextn_predict_layers"):
        groups.add("drafts")
    return groups


def _section(document: Mapping[str, Any], name: str) -> Mapping[str, Any]:
    if name not in document:
        raise ConfigError(f"config.json: {name} is missing; it must be an object")
    section = document[name]
    if not isinstance(section, Mapping):
        reject(name, section, "it must be an object")
    return section


def _collect(
    kind: type[Any], source: Mapping[str, Any], path: str, groups: set[str], section: str = ""
) -> dict[str, Any]:
    """The values of a section by field name, after checking that every needed key is there."""
    prefix = f"{path}." if path else ""
    values: dict[str, Any] = {}
    known = set()
    for item in fields(kind):
        if "rule" not in item.metadata or item.metadata["section"] != section:
            continue
        name = _json_key(item.name)
        known.add(name)
        if name in source:
            values[item.name] = frozen(source[name])
        elif item.default is MISSING or (item.metadata["group"] and item.metadata["group"] in groups):
            raise ConfigError(f"config.json: {prefix}{name} is missing; it is required")
    unknown = sorted(set(source) - known - {"text_config", "vision_config", "quantization_config", "rope_scaling"})
    if unknown:
        _LOG.debug("config.json: keys of %s not used: %s", path or "the top level", ", ".join(unknown))
    return values


def _check_values(config: Any, path: str, groups: set[str]) -> None:
    for item in fields(config):
        rule = item.metadata.get("rule")
        group = item.metadata.get("group")
        if rule is None or (group and group not in groups):
            continue
        value = getattr(config, item.name)
        if not rule.accepts(value):
            section = path or item.metadata["section"]
            reject(f"{section}.{_json_key(item.name)}" if section else item.name, value, rule.expectation)


def _plain(value: Any) -> Any:
    if dataclasses.is_dataclass(value) and not isinstance(value, type):
        return {item.name: _plain(getattr(value, item.name)) for item in fields(value)}
    return [_plain(v) for v in value] if isinstance(value, tuple) else value
