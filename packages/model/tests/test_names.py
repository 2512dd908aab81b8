"""The generated list of tensors, against published totals and real files."""

from __future__ import annotations

from collections import Counter
from pathlib import Path
from typing import Any

from thalweg.model import ModelConfig, small_config, tensor_specs
from thalweg.model.names import scale_name, tied_target
from thalweg.model.survey import survey_checkpoint

GOLDEN = Path(__file__).parent / "golden"


def test_the_released_config_has_exactly_the_published_tensors_and_bytes(released: dict[str, Any]) -> None:
    specs = list(tensor_specs(ModelConfig.from_dict(released)))
    assert len(specs) == len({spec.name for spec in specs}) == 96_085
    assert sum(spec.num_bytes for spec in specs) == 510_286_023_000
    assert Counter(spec.dtype for spec in specs) == {
        "F8_E4M3": 357,
        "F8_E8M0": 47_589,
        "BF16": 520,
        "F32": 387,
        "I8": 47_232,
    }


def test_shapes_of_the_released_model_are_those_of_the_tables(released: dict[str, Any]) -> None:
    shapes = {spec.name: spec.shape for spec in tensor_specs(ModelConfig.from_dict(released))}
    expected = {
        "layers.0.hc_attn_fn": (24, 20480),
        "layers.0.attn.wq_b.weight": (32768, 1280),
        "layers.0.attn.wq_b.scale": (1024, 40),
        "layers.0.attn.wo_a.weight": (8192, 4096),
        "layers.0.attn.wo_b.weight": (5120, 8192),
        "layers.1.engram.embed.weight": (384006168, 256),
        "layers.1.engram.embed.scale": (384006168, 8),
        "layers.14.engram.wkv.weight": (25600, 6144),
        "layers.20.attn.indexer.wq_b.weight": (4096, 1280),
        "layers.20.attn.indexer.wk.weight": (128, 512),
        "layers.39.ffn.experts.383.w1.weight": (2304, 2560),
        "layers.39.ffn.experts.383.w2.weight": (5120, 1152),
        "layers.39.ffn.experts.383.w2.scale": (5120, 72),
        "mtp.0.main_proj.weight": (5120, 15360),
        "mtp.2.confidence_head.proj.weight": (1, 5376),
        "mtp.2.ffn.gate.bias_vl": (128,),
        "vision.patch_embed.proj.weight": (1024, 588),
        "vision.blocks.31.mlp.w1.weight": (5632, 1024),
        "aligner.w1.weight": (5120, 9216),
    }
    assert {name: shapes[name] for name in expected} == expected
    absent = (
        "layers.20.attn.compressor.wgate.weight",
        "layers.3.attn.compressor.wkv.weight",
        "layers.24.attn.indexer.wk.weight",
        "mtp.1.main_proj.weight",
        "mtp.0.norm.weight",
        "mtp.0.embed.weight",
    )
    assert not any(name in shapes for name in absent)


def test_the_golden_checkpoint_holds_exactly_the_generated_tensors() -> None:
    survey = survey_checkpoint(GOLDEN / "tiny_a", ModelConfig.from_file(GOLDEN / "tiny_a"))
    assert (survey.problems, survey.missing, survey.unexpected) == ([], [], [])
    assert len(survey.stored) == 643


def test_a_scale_is_named_after_its_weight() -> None:
    assert scale_name("layers.0.attn.wq_a.weight") == "layers.0.attn.wq_a.scale"


def test_tied_copies_point_to_the_tensor_that_is_used() -> None:
    separate, tied = small_config(), small_config(tie_word_embeddings=True)
    assert tied_target(separate, "mtp.1.embed.weight") == "embed.weight"
    assert tied_target(separate, "mtp.0.head.weight") == "head.weight"
    assert tied_target(separate, "head.weight") is None
    assert tied_target(tied, "head.weight") == "embed.weight"
    assert tied_target(tied, "mtp.0.head.weight") == "embed.weight"
    assert tied_target(separate, "mtp.0.markov_head.head.weight") is None
    assert "head.weight" not in {spec.name for spec in tensor_specs(tied)}


def test_draft_tensors_are_their_own_module(draft_config: ModelConfig) -> None:
    for spec in tensor_specs(draft_config):
        assert (spec.module == "draft") == spec.name.startswith("mtp.")
