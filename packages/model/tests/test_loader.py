"""The loader: what it hands out, and one damaged checkpoint for every check, with the message it must give."""

from __future__ import annotations

import json
import logging
import shutil
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest
import torch
from safetensors import safe_open

from thalweg.interfaces import CheckpointError, ConfigError
from thalweg.model import Checkpoint, ModelConfig, small_config, write_random_checkpoint
from thalweg.model.synthetic import write_sparse_checkpoint

GOLDEN = Path(__file__).parent / "golden"
HIDDEN_NORM = bytes(128)


def refusal(directory: Path, **options: Any) -> str:
    with pytest.raises(CheckpointError) as caught:
        Checkpoint.open(directory, **options)
    return str(caught.value)


@pytest.mark.parametrize("place", ["golden", "random"])
def test_every_tensor_is_handed_out_as_it_is_stored(place: str, random_checkpoint: Path) -> None:
    directory = GOLDEN / "tiny_a" if place == "golden" else random_checkpoint
    seen = 0
    with Checkpoint.open(directory) as checkpoint:
        for shard in sorted(directory.glob("*.safetensors")):
            with safe_open(shard, "pt") as reference:
                for name in reference.keys():  # noqa: SIM118
                    expected, found = reference.get_tensor(name), checkpoint.tensor(name)
                    assert (found.dtype, found.shape) == (expected.dtype, expected.shape), name
                    assert torch.equal(found.view(torch.uint8), expected.view(torch.uint8)), name
                    seen += 1
        assert seen == len(list(checkpoint))
    assert seen > 600


def test_codes_and_scales_come_as_bytes(random_checkpoint: Path) -> None:
    with Checkpoint.open(random_checkpoint, strict=True) as checkpoint:
        codes, scales = checkpoint.quantized("layers.0.attn.wq_a")
        assert (codes.dtype, scales.dtype) == (torch.uint8, torch.uint8)
        assert (tuple(codes.shape), tuple(scales.shape)) == ((64, 64), (2, 2))
        packed, _ = checkpoint.quantized("layers.0.ffn.experts.7.w2")
        assert tuple(packed.shape) == (64, 32)
        with pytest.raises(CheckpointError, match=r"embed\.weight: dtype is BF16"):
            checkpoint.codes("embed.weight")


def test_engram_tables_are_padded_for_equal_parts_per_rank(random_checkpoint: Path) -> None:
    with Checkpoint.open(random_checkpoint) as checkpoint:
        codes, scales = checkpoint.engram_table(3)
        assert tuple(codes.shape) == (306, 32)
        padded_codes, padded_scales = checkpoint.engram_table(3, num_ranks=3)
        assert tuple(padded_codes.shape) == (768, 32)
        assert torch.equal(padded_codes[:306], codes)
        assert torch.equal(padded_scales[:306], scales)
        assert not padded_codes[306:].any()
        assert (padded_scales[306:] == 127).all()
        with pytest.raises(ConfigError, match="num_ranks is 0"):
            checkpoint.engram_table(3, num_ranks=0)


def test_tensors_outlive_the_checkpoint_and_never_reach_the_file(random_checkpoint: Path) -> None:
    with Checkpoint.open(random_checkpoint) as checkpoint:
        norm = checkpoint.tensor("norm.weight")
        before = norm.clone()
        norm.zero_()
    assert not norm.any()
    with pytest.raises(CheckpointError, match=r"is closed; open it again to read norm\.weight"):
        checkpoint.tensor("norm.weight")
    with Checkpoint.open(random_checkpoint) as again:
        assert torch.equal(again.tensor("norm.weight"), before)


def test_a_table_larger_than_memory_can_be_mapped(released: dict[str, Any], tmp_path: Path) -> None:
    text = released["text_config"] | {"n_routed_experts": 6, "dspark_n_routed_experts": 3}
    write_sparse_checkpoint(tmp_path, ModelConfig.from_dict(released | {"text_config": text}), num_shards=4)
    with Checkpoint.open(tmp_path, strict=True) as checkpoint:
        codes, scales = checkpoint.engram_table(14)
        assert (tuple(codes.shape), tuple(scales.shape)) == ((384_016_682, 256), (384_016_682, 8))
        assert not codes[-1].any()
        assert not scales[-1].any()


def test_a_name_that_is_not_there_is_refused(random_checkpoint: Path) -> None:
    with Checkpoint.open(random_checkpoint) as checkpoint:
        assert "norm.weight" in checkpoint
        assert checkpoint.header("norm.weight").shape == (64,)
        assert "layers.0.nothing" not in checkpoint
        with pytest.raises(CheckpointError, match=r"layers\.0\.nothing: not in the checkpoint"):
            checkpoint.tensor("layers.0.nothing")


def test_the_golden_checkpoint_keeps_a_table_and_its_scales_in_two_files() -> None:
    message = refusal(GOLDEN / "tiny_a", strict=True)
    assert "layers.3.engram.embed.scale: lies in model-00003-of-00007.safetensors" in message
    assert "it must be in model-00004-of-00007.safetensors like its table" in message


# Check 1: index and shards.


def test_a_missing_index_is_an_error(editable: Any) -> None:
    (editable.directory / "model.safetensors.index.json").unlink()
    assert "model.safetensors.index.json: cannot be read" in refusal(editable.directory)


@pytest.mark.parametrize(
    ("text", "reason"),
    [("{", "not valid JSON"), ("[" * 100_000, "not valid JSON"), ("{}", "weight_map is missing")],
    ids=["cut off", "too deep", "empty"],
)
def test_a_broken_index_is_an_error(editable: Any, text: str, reason: str) -> None:
    (editable.directory / "model.safetensors.index.json").write_text(text)
    assert reason in refusal(editable.directory)


def test_all_missing_shards_are_named(editable: Any) -> None:
    for shard in editable.directory.glob("*.safetensors"):
        shard.unlink()
    message = refusal(editable.directory)
    assert "names files that do not exist: model-00001-of-0000" in message
    assert all(shard in message for shard in editable.index.values())


def test_a_shard_outside_the_directory_is_refused(editable: Any) -> None:
    editable.index["norm.weight"] = "../elsewhere.safetensors"
    editable.write_index()
    assert "norm.weight lies in '../elsewhere.safetensors'" in refusal(editable.directory)


def test_indexed_tensors_that_are_not_in_their_shard_are_counted(editable: Any) -> None:
    for number in range(12):
        editable.index[f"extra.{number}"] = editable.index["norm.weight"]
    editable.write_index()
    message = refusal(editable.directory)
    assert "indexed but not in their shard: extra.0 (model-00001" in message
    assert "extra.9" in message
    assert "extra.10" not in message
    assert "(12 in all)" in message


def test_the_prefix_model_is_accepted_in_index_and_shards_independently(editable: Any) -> None:
    editable.rename("norm.weight", "model.norm.weight", in_shard=False)
    editable.rename("embed.weight", "model.embed.weight", in_index=False)
    editable.rename("layers.0.attn.attn_sink", "model.layers.0.attn.attn_sink")
    with Checkpoint.open(editable.directory, strict=True) as checkpoint:
        assert tuple(checkpoint.tensor("embed.weight").shape) == (512, 64)
        assert "layers.0.attn.attn_sink" in checkpoint


def test_both_spellings_of_one_tensor_are_an_error(editable: Any) -> None:
    editable.index["model.norm.weight"] = editable.index["norm.weight"]
    editable.write_index()
    assert "both norm.weight and model.norm.weight are indexed" in refusal(editable.directory)


def test_both_spellings_in_the_shards_are_an_error(editable: Any) -> None:
    editable.rewrite(
        editable.shard("norm.weight"),
        lambda tensors: tensors.update({"model.norm.weight": ["BF16", [64], HIDDEN_NORM]}),
    )
    assert "both norm.weight and model.norm.weight are stored" in refusal(editable.directory)


# Check 2: folded norms.


@pytest.mark.parametrize("name", ["layers.0.hc_attn_norm.weight", "layers.3.hc_ffn_norm.weight", "hc_head_norm.weight"])
def test_norms_of_hyper_connections_mark_an_unsupported_checkpoint(editable: Any, name: str) -> None:
    editable.add(name, "BF16", [64], HIDDEN_NORM)
    message = refusal(editable.directory)
    assert f"{name}: unsupported checkpoint" in message
    assert "folded" in message


def test_a_file_name_that_no_file_can_have_is_a_missing_file(editable: Any) -> None:
    index = editable.directory / "model.safetensors.index.json"
    document = json.loads(index.read_text())
    document["weight_map"]["norm.weight"] = "x" * 300
    index.write_text(json.dumps(document))
    assert "names files that do not exist: xxx" in refusal(editable.directory)


# Check 3: headers and byte ranges (the rest is in test_safetensors_header.py).


def test_a_truncated_shard_is_an_error(editable: Any) -> None:
    shard = editable.shard("norm.weight")
    raw = shard.read_bytes()
    shard.write_bytes(raw[:-100])
    message = refusal(editable.directory)
    assert f"{shard.name}: tensor " in message
    assert "lie outside the data area of" in message


def test_a_shard_that_shrinks_after_opening_raises_instead_of_crashing(editable: Any) -> None:
    with Checkpoint.open(editable.directory) as checkpoint:
        shard = editable.shard("norm.weight")
        with shard.open("rb+") as file:
            file.truncate(5000)
        with pytest.raises(CheckpointError, match=r"short read, 5000 bytes are left of"):
            checkpoint.tensor("norm.weight")


def test_a_bad_header_length_is_an_error(editable: Any) -> None:
    shard = editable.shard("norm.weight")
    raw = shard.read_bytes()
    shard.write_bytes((len(raw) * 2).to_bytes(8, "little") + raw[8:])
    assert f"{shard.name}: header length is {len(raw) * 2}; it must be 1 to {len(raw) - 8}" in refusal(
        editable.directory
    )


# Check 4: nothing missing.


def test_all_missing_tensors_are_listed(editable: Any) -> None:
    for name in (
        "layers.0.attn.wq_a.scale",
        "layers.5.ffn.shared_experts.w3.weight",
        "mtp.1.confidence_head.proj.weight",
    ):
        editable.drop(name)
    message = refusal(editable.directory)
    assert (
        "missing tensors (3): layers.0.attn.wq_a.scale, layers.5.ffn.shared_experts.w3.weight, "
        "mtp.1.confidence_head.proj.weight" in message
    )


def test_a_renamed_expert_leaves_a_gap(editable: Any) -> None:
    editable.rename("layers.2.ffn.experts.3.w2.weight", "layers.2.ffn.experts.8.w2.weight")
    message = refusal(editable.directory)
    assert "missing tensors (1): layers.2.ffn.experts.3.w2.weight" in message
    assert "layers.2.ffn.experts.8.w2.weight" in refusal(editable.directory, strict=True)


def test_missing_experts_are_listed_as_ranges(editable: Any) -> None:
    for expert in (1, 2, 3, 6):
        editable.drop(f"layers.2.ffn.experts.{expert}.w1.scale")
    message = refusal(editable.directory)
    assert "layers.2.ffn.experts.[1-3].w1.scale, layers.2.ffn.experts.6.w1.scale" in message


@pytest.mark.parametrize("part", ["weight", "scale"])
def test_an_engram_table_needs_codes_and_scales(editable: Any, part: str) -> None:
    editable.drop(f"layers.1.engram.embed.{part}")
    assert f"missing tensors (1): layers.1.engram.embed.{part}" in refusal(editable.directory)


def test_scales_in_another_file_than_their_table_are_an_error_under_strict(editable: Any) -> None:
    name = "layers.1.engram.embed.scale"
    table = editable.shard("layers.1.engram.embed.weight")
    other = next(shard for shard in set(editable.index.values()) if shard != table.name)
    moved: dict[str, Any] = {}
    editable.rewrite(table, lambda tensors: moved.update({name: tensors.pop(name)}))
    editable.rewrite(editable.directory / other, lambda tensors: tensors.update(moved))
    editable.index[name] = other
    editable.write_index()
    Checkpoint.open(editable.directory).close()
    message = refusal(editable.directory, strict=True)
    assert f"{name}: lies in {other}; it must be in {table.name} like its table" in message


# Checks 5 and 6: shapes and dtypes.


@pytest.mark.parametrize(
    ("name", "dtype", "shape", "needed"),
    [
        ("norm.weight", "BF16", [63], "[64]"),
        ("norm.weight", "BF16", [1, 64], "[64]"),
        ("layers.0.attn.wq_b.weight", "F8_E4M3", [64, 256], "[256, 64]"),
        ("layers.0.attn.wq_b.scale", "F8_E8M0", [8, 1], "[8, 2]"),
        ("layers.0.ffn.experts.0.w1.scale", "F8_E8M0", [2, 64], "[64, 2]"),
        ("layers.0.hc_attn_fn", "F32", [256, 24], "[24, 256]"),
        ("mtp.0.main_proj.weight", "F8_E4M3", [64, 64], "[64, 128]"),
    ],
)
def test_a_wrong_shape_is_an_error(editable: Any, name: str, dtype: str, shape: list[int], needed: str) -> None:
    size = {"BF16": 2, "F32": 4}.get(dtype, 1)
    for extent in shape:
        size *= extent
    editable.alter(name, dtype, shape, bytes(size))
    assert f"{name}: shape is {shape}; {needed} is needed" in refusal(editable.directory)


@pytest.mark.parametrize(
    ("name", "dtype", "shape", "needed"),
    [
        ("norm.weight", "F16", [64], "BF16"),
        ("layers.0.hc_attn_fn", "BF16", [24, 256], "F32"),
        ("layers.0.attn.attn_sink", "BF16", [4], "F32"),
        ("layers.0.ffn.gate.bias_vl", "BF16", [8], "F32"),
        ("layers.0.attn.wq_b.scale", "U8", [8, 2], "F8_E8M0"),
        ("layers.0.attn.wq_b.weight", "F8_E5M2", [256, 64], "F8_E4M3"),
        ("layers.0.ffn.experts.0.w1.weight", "U8", [64, 32], "I8"),
    ],
)
def test_a_wrong_dtype_is_an_error(editable: Any, name: str, dtype: str, shape: list[int], needed: str) -> None:
    size = 2 if dtype in ("F16", "BF16") else 1
    for extent in shape:
        size *= extent
    editable.alter(name, dtype, shape, bytes(size))
    assert f"{name}: dtype is {dtype}; {needed} is needed" in refusal(editable.directory)


def test_every_defect_is_reported_at_once(editable: Any) -> None:
    editable.alter("norm.weight", "F16", [64], HIDDEN_NORM)
    editable.drop("embed.weight")
    message = refusal(editable.directory)
    assert "norm.weight: dtype is F16" in message
    assert "missing tensors (1): embed.weight" in message


# Check 7: unexpected names.


def test_unexpected_tensors_warn_and_are_refused_under_strict(editable: Any, caplog: pytest.LogCaptureFixture) -> None:
    editable.add("layers.0.attn.extra.weight", "BF16", [64], HIDDEN_NORM)
    with caplog.at_level(logging.WARNING), Checkpoint.open(editable.directory) as checkpoint:
        assert checkpoint.unexpected == ("layers.0.attn.extra.weight",)
    assert "unexpected tensors: layers.0.attn.extra.weight (1 in all)" in caplog.text
    assert "unexpected tensors: layers.0.attn.extra.weight" in refusal(editable.directory, strict=True)


def test_a_tensor_that_is_not_indexed_counts_as_unexpected(editable: Any) -> None:
    del editable.index["norm.weight"]
    editable.index["layers.0.norm_copy"] = "model-00001-of-00002.safetensors"
    editable.write_index()
    message = refusal(editable.directory, strict=True)
    assert "norm.weight (in model-00001" in message
    assert "missing tensors (1): norm.weight" in message


@pytest.mark.parametrize("name", ["mtp.0.extra.weight", "mtp.2.norm.weight", "mtp.1.main_norm.weight"])
def test_unexpected_draft_tensors_are_always_an_error(editable: Any, name: str) -> None:
    editable.add(name, "BF16", [64], HIDDEN_NORM)
    message = refusal(editable.directory)
    assert f"unexpected draft tensors: {name} (1 in all)" in message
    assert "num_nextn_predict_layers is 2" in message


def test_draft_tensors_without_draft_layers_in_the_config_are_an_error(editable: Any) -> None:
    config = ModelConfig.from_file(editable.directory)
    without = replace(config, num_nextn_predict_layers=0, compress_ratios=config.compress_ratios[:8])
    assert "unexpected draft tensors: mtp.0." in refusal(editable.directory, config=without)


# Check 8: tied storage.


def test_tied_draft_copies_are_ignored_when_they_match(editable: Any) -> None:
    for name in ("mtp.0.embed.weight", "mtp.1.head.weight"):
        editable.add(name, "BF16", [512, 64], bytes(512 * 64 * 2))
    with Checkpoint.open(editable.directory, strict=True) as checkpoint:
        assert torch.equal(checkpoint.tensor("mtp.0.embed.weight"), checkpoint.tensor("embed.weight"))
        assert torch.equal(checkpoint.tensor("mtp.1.head.weight"), checkpoint.tensor("head.weight"))


@pytest.mark.parametrize(
    ("dtype", "shape", "reason"),
    [
        ("F32", [512, 64], "dtype is F32; its tied target embed.weight has BF16"),
        ("BF16", [256, 64], "shape is [256, 64]"),
    ],
)
def test_tied_draft_copies_must_match_their_target(editable: Any, dtype: str, shape: list[int], reason: str) -> None:
    size = shape[0] * shape[1] * (4 if dtype == "F32" else 2)
    editable.add("mtp.0.embed.weight", dtype, shape, bytes(size))
    assert f"mtp.0.embed.weight: {reason}" in refusal(editable.directory)


def test_a_tied_head_is_the_embedding(tmp_path: Path) -> None:
    write_random_checkpoint(tmp_path / "tied", small_config(tie_word_embeddings=True))
    with Checkpoint.open(tmp_path / "tied", strict=True) as checkpoint:
        assert "head.weight" not in list(checkpoint)


# Check 9: Engram tables.


@pytest.mark.parametrize(
    ("part", "dtype", "shape", "reason"),
    [
        ("weight", "F8_E4M3", [239, 32], "shape is [239, 32]; [240, 32] is needed; rows must be the sum"),
        ("weight", "F8_E4M3", [256, 32], "shape is [256, 32]; [240, 32] is needed; rows must be the sum"),
        ("weight", "F8_E4M3", [240, 64], "shape is [240, 64]; [240, 32] is needed"),
        ("scale", "F8_E8M0", [239, 1], "shape is [239, 1]; [240, 1] is needed; rows must be the sum"),
        ("scale", "F8_E8M0", [240, 2], "shape is [240, 2]; [240, 1] is needed"),
    ],
)
def test_an_engram_table_must_have_the_rows_of_its_primes(
    editable: Any, part: str, dtype: str, shape: list[int], reason: str
) -> None:
    editable.alter(f"layers.1.engram.embed.{part}", dtype, shape, bytes(shape[0] * shape[1]))
    assert f"layers.1.engram.embed.{part}: {reason}" in refusal(editable.directory)


def test_a_config_with_other_table_rows_is_refused_before_the_files_are_read(editable: Any) -> None:
    path = editable.directory / "config.json"
    document = json.loads(path.read_text())
    document["text_config"]["engram_num_embeddings"] = [240, 308]
    path.write_text(json.dumps(document))
    with pytest.raises(ConfigError, match=r"engram_num_embeddings is \[240, 308\]; the bucket primes .* \[240, 306\]"):
        Checkpoint.open(editable.directory)


def test_a_missing_config_is_an_error(random_checkpoint: Path, tmp_path: Path) -> None:
    shutil.copytree(random_checkpoint, tmp_path / "copy")
    (tmp_path / "copy/config.json").unlink()
    assert "config.json: cannot be read" in refusal(tmp_path / "copy")
