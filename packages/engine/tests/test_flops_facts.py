import json
from dataclasses import replace
from pathlib import Path
from typing import Any

from thalweg.engine.flops_facts import flops_model
from thalweg.model import ModelConfig, small_config
from thalweg.scheduler.flops import FlopsEstimator

GOLDEN = Path(__file__).parent / "golden" / "flops_v41_like.json"


def released_sizes() -> ModelConfig:
    """A config with the sizes and source layers of the recorded rows."""
    return small_config(
        vocab_size=129280,
        hidden_size=5120,
        num_hidden_layers=40,
        num_attention_heads=64,
        head_dim=512,
        q_lora_rank=1280,
        o_groups=8,
        o_lora_rank=1024,
        moe_intermediate_size=2304,
        n_routed_experts=384,
        num_experts_per_tok=6,
        sliding_window=128,
        compress_ratios=[0] * 2 + [2] * 18 + [1] * 20,
        kv_source_layer_ids=[2, 20],
        index_source_layer_ids=[2, 6, 10, 14, 18, 20, 24, 28, 32, 36],
        index_n_heads=32,
        index_head_dim=128,
        index_topk=512,
        candidate_source_layer_id=20,
        candidate_topk_blocks=64,
        candidate_block_size=16,
        engram_layer_ids=[1, 14],
        engram_n_heads=8,
        engram_head_dim=128,
    )


def estimate(facts: ModelConfig, case: dict[str, Any]) -> tuple[int, int]:
    model = flops_model(facts, replay=case["yoco_mode"], replay_keep_tokens=case["keep_tokens"])
    # The rows were recorded with candidate blocks larger than a config may have.
    layers = (replace(layer, candidate_block_size=64 if layer.candidate_blocks else 0) for layer in model.layers)
    model = replace(model, layers=tuple(layers))
    row = (case["q"], case["k"], case["is_prompt"], case["full_len"], case["swa_valid_start"])
    return FlopsEstimator(model).estimate(*row)


def test_a_config_of_the_recorded_sizes_gives_the_recorded_flops() -> None:
    cases = json.loads(GOLDEN.read_text())["cases"]
    assert len(cases) == 21
    facts = released_sizes()
    for case in cases:
        assert estimate(facts, case) == (case["attention"], case["total"]), case


def test_features_that_are_off_cost_nothing() -> None:
    row = (1, 500, False)
    everything = FlopsEstimator(flops_model(small_config())).estimate(*row)
    without_engram = FlopsEstimator(flops_model(small_config(engram_layer_ids=[]))).estimate(*row)
    assert without_engram.attention == everything.attention
    assert without_engram.total < everything.total
    unlimited = FlopsEstimator(flops_model(small_config(candidate_source_layer_id=None))).estimate(*row)
    assert unlimited.attention > everything.attention
