"""Random checkpoints: complete, loadable, repeatable, and of any small config."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import pytest
import torch
from tokenizers import Tokenizer

from thalweg.interfaces import ConfigError
from thalweg.kernels.reference.quant import dequantize_fp8_weight, dequantize_mxfp4, dequantize_mxfp8
from thalweg.model import (
    Checkpoint,
    EngramVocabulary,
    Model,
    ModelConfig,
    small_config,
    tensor_specs,
    write_random_checkpoint,
)

GOLDEN = Path(__file__).parent / "golden"


def files(directory: Path) -> dict[str, bytes]:
    return {path.name: path.read_bytes() for path in sorted(directory.iterdir())}


def test_the_default_checkpoint_loads_under_strict(tmp_path: Path) -> None:
    config = write_random_checkpoint(tmp_path / "new")
    with Checkpoint.open(tmp_path / "new", strict=True) as checkpoint:
        assert checkpoint.config == config
        assert checkpoint.unexpected == ()
        assert set(checkpoint) == {spec.name for spec in tensor_specs(config)}
    assert len(list((tmp_path / "new").glob("*.safetensors"))) > 1
    vocabulary = EngramVocabulary.from_checkpoint(tmp_path / "new", config)
    assert vocabulary.size == config.engram_compressed_vocab_size


def test_every_mechanism_is_live_in_the_default_config() -> None:
    config = small_config()
    kinds = config.topology.layers
    assert {kind.ratio for kind in kinds} == {0, 1, 2}
    assert any(kind.produces_candidates for kind in kinds)
    assert any(kind.candidate_source is not None for kind in kinds)
    assert any(kind.kv_source is not None and not kind.is_index_source for kind in kinds)
    assert any(kind.engram_index is not None and kind.ratio for kind in kinds)
    assert config.index_topk < 96 // 2
    assert config.candidate_topk_blocks * config.candidate_block_size < 96
    assert config.sliding_window < 96
    assert config.num_draft_layers == 0


def test_the_same_seed_gives_the_same_bytes(tmp_path: Path) -> None:
    for name, seed in (("a", 3), ("b", 3), ("c", 4)):
        write_random_checkpoint(tmp_path / name, seed=seed)
    assert files(tmp_path / "a") == files(tmp_path / "b")
    assert files(tmp_path / "a")["tokenizer.json"] == files(tmp_path / "c")["tokenizer.json"]
    assert files(tmp_path / "a") != files(tmp_path / "c")


def test_weights_have_sizes_that_keep_activations_near_one(random_checkpoint: Path) -> None:
    with Checkpoint.open(random_checkpoint, strict=True) as checkpoint:
        for name in checkpoint:
            if name.endswith(".scale"):
                continue
            header = checkpoint.header(name)
            if header.dtype == "F8_E4M3":
                decode = dequantize_mxfp8 if "engram.embed" in name else dequantize_fp8_weight
                values = decode(*checkpoint.quantized(name.removesuffix(".weight")))
            elif header.dtype == "I8":
                values = dequantize_mxfp4(*checkpoint.quantized(name.removesuffix(".weight")))
            else:
                values = checkpoint.tensor(name).float()
            assert torch.isfinite(values).all(), name
            assert 0 < values.abs().max() < 8, name
            if values.dim() == 2 and "embed" not in name and "hc_" not in name and values.shape[0] > 4:
                assert 0.5 < values.std() * values.shape[1] ** 0.5 < 2.5, name


@pytest.mark.parametrize(
    "changes",
    [
        {"engram_layer_ids": []},
        {"candidate_source_layer_id": None},
        {"rope_scaling": None},
        {"vocab_size": 64},
        {"vocab_size": 1000, "hidden_size": 96, "n_routed_experts": 3},
        {"tie_word_embeddings": True},
        {"hc_mult": 2, "use_fp4_sparse_kv": False},
    ],
)
def test_any_small_config_can_be_written(tmp_path: Path, changes: dict[str, Any]) -> None:
    config = write_random_checkpoint(tmp_path / "x", small_config(**changes))
    Checkpoint.open(tmp_path / "x", strict=True).close()
    assert Tokenizer.from_file(str(tmp_path / "x/tokenizer.json")).get_vocab_size() == config.vocab_size


def test_the_reduced_golden_config_with_a_draft_layer_and_a_vision_tower_can_be_written(tmp_path: Path) -> None:
    document = json.loads((GOLDEN / "tiny_a/config.json").read_text())
    document["vision_config"]["num_hidden_layers"] = 2
    write_random_checkpoint(tmp_path / "x", ModelConfig.from_dict(document))
    with Checkpoint.open(tmp_path / "x", strict=True) as checkpoint:
        assert tuple(checkpoint.tensor("vision.blocks.1.attn.wqkv.weight").shape) == (192, 64)
        assert "mtp.0.markov_head.head.weight" in checkpoint


def test_the_tokenizer_keeps_every_text_and_the_special_ids(random_checkpoint: Path) -> None:
    tokenizer = Tokenizer.from_file(str(random_checkpoint / "tokenizer.json"))
    for text in ("The river flows.", "déjà vu 中文 \U0001f30a\n\tdef f(x):", " ", ""):
        assert tokenizer.decode(tokenizer.encode(text).ids) == text
    assert len(tokenizer.encode("The river is called the thalweg").ids) < 20
    assert [tokenizer.id_to_token(i) for i in range(5)] == [
        "<\uff5cbegin\u2581of\u2581sentence\uff5c>",
        "<\uff5cend\u2581of\u2581sentence\uff5c>",
        "<\uff5c\u2581pad\u2581\uff5c>",
        "<\uff5cnoise\uff5c>",
        "<\uff5cimage\uff5c>",
    ]


def test_the_forward_pass_of_a_random_checkpoint_behaves(tmp_path: Path) -> None:
    write_random_checkpoint(tmp_path / "x")
    model = Model.load(tmp_path / "x", mode="plain", arithmetic="float32")
    tokens = torch.randint(5, 512, (48,), generator=torch.Generator().manual_seed(0))
    (logits,) = model.forward_sequences([tokens])
    assert torch.isfinite(logits).all()
    assert 1 < float(logits.std()) < 4
    assert len(logits.argmax(-1).unique()) > 20


def test_a_directory_with_files_is_left_alone(tmp_path: Path) -> None:
    (tmp_path / "mine").write_text("keep")
    with pytest.raises(ConfigError, match="it must be empty or not exist yet"):
        write_random_checkpoint(tmp_path)
    with pytest.raises(ConfigError, match="it must be empty or not exist yet"):
        write_random_checkpoint(tmp_path / "mine")
    assert [path.name for path in tmp_path.iterdir()] == ["mine"]
