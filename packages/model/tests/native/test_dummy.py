"""Random weights without a file: the right formats, sizes that keep a model finite, the same ones for a seed."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import pytest
import torch

from thalweg.interfaces import ConfigError
from thalweg.kernels import bind
from thalweg.model import ModelConfig, small_config, tensor_specs
from thalweg.model.native.dummy import DummyTensors, dummy_model
from thalweg.model.real_width import ENGRAM_SHARE, real_width_config

STORED = {"BF16": torch.bfloat16, "F32": torch.float32}
REDUCED = {
    "num_hidden_layers",
    "compress_ratios",
    "kv_source_layer_ids",
    "index_source_layer_ids",
    "index_k_source_layer_ids",
    "candidate_source_layer_id",
    "engram_layer_ids",
    "engram_num_embeddings",
    "engram_vocab_size",
    "dspark_target_layer_ids",
}
"""Keys that follow from fewer layers and a shorter Engram table."""


@pytest.fixture(scope="module")
def config() -> ModelConfig:
    return small_config(hidden_size=256, moe_intermediate_size=128, vocab_size=288, num_nextn_predict_layers=1)


def test_every_tensor_has_shape_and_dtype_of_a_checkpoint(config: ModelConfig) -> None:
    source = DummyTensors(config, "cpu")
    for spec in tensor_specs(config):
        if spec.is_scale:
            continue
        if spec.format in ("bf16", "f32"):
            tensor = source.tensor(spec.name)
            assert tensor.dtype == STORED[spec.dtype], spec.name
            assert tuple(tensor.shape) == spec.shape, spec.name
        else:
            codes, scales = source.quantized(spec.name.removesuffix(".weight"))
            assert codes.dtype == scales.dtype == torch.uint8, spec.name
            assert tuple(codes.shape) == spec.shape, spec.name
            assert bool((scales > 0).all() and (scales < 255).all()), spec.name


def test_a_dummy_model_is_finite_and_looks_at_its_tokens(
    config: ModelConfig, native_tokens: torch.Tensor, make_cache: Callable[..., Any]
) -> None:
    cache = make_cache(dummy_model(config, bind("cpu"), "cpu", num_positions=128))
    running, other = cache.add(native_tokens), cache.add(native_tokens.flip(0))
    cache.prefill([(running, 80), (other, 80)])
    cache.decode([(running, 1), (other, 1)])
    logits = torch.stack([running.logits[80], other.logits[80]])
    assert bool(logits.isfinite().all())
    assert 0.5 < float(logits.std()) < 10
    assert float((logits[0] - logits[1]).abs().max()) > 0.5


def test_a_seed_names_the_weights(config: ModelConfig) -> None:
    name = "layers.0.attn.wq_a"
    codes = [DummyTensors(config, "cpu", seed).quantized(name)[0] for seed in (1, 1, 2)]
    assert torch.equal(codes[0], codes[1])
    assert not torch.equal(codes[0], codes[2])


def test_a_tensor_that_no_checkpoint_has_is_refused(config: ModelConfig) -> None:
    with pytest.raises(ConfigError, match=r"name is 'layers.9.x.weight'; a checkpoint of this config has no such"):
        DummyTensors(config, "cpu").quantized("layers.9.x")
    with pytest.raises(ConfigError, match=r"layers.0.attn.wq_a.weight: dtype is .*; BF16 and F32 are made here"):
        DummyTensors(config, "cpu").tensor("layers.0.attn.wq_a.weight")


def test_the_config_of_real_width_differs_from_the_release_in_its_layers_alone(released: dict[str, Any]) -> None:
    text = real_width_config(num_draft_layers=3).to_dict()["text_config"]
    theirs = released["text_config"]
    assert {key for key, value in theirs.items() if value != text[key]} <= REDUCED | {"model_type"}
    assert text["engram_vocab_size"] * ENGRAM_SHARE == theirs["engram_vocab_size"]
    kinds = real_width_config().topology.layers
    assert {kind.ratio for kind in kinds} == {0, 1, 2}
    assert [kind.layer for kind in kinds if kind.is_index_source] == [1, 3, 5]
    assert [kind.layer for kind in kinds if kind.produces_candidates] == [3]
    assert [kind.layer for kind in kinds if kind.candidate_source is not None] == [5]
