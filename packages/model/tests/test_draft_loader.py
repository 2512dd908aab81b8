"""Loading a drafter fails, by name, whenever a draft tensor is missing, unknown or unused."""

from __future__ import annotations

import json
import logging
from collections.abc import Callable
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest
import torch

from thalweg.interfaces import CheckpointError, ConfigError
from thalweg.model import DraftNetwork, Model, ModelConfig, small_config, tensor_specs, write_random_checkpoint
from thalweg.model.weights import Weights

INDEX = "model.safetensors.index.json"


@pytest.fixture(scope="module")
def model(random_checkpoint: Path) -> Model:
    return Model.load(random_checkpoint)


@pytest.fixture
def draft_names(draft_config: ModelConfig) -> list[str]:
    return [spec.name for spec in tensor_specs(draft_config) if spec.name.startswith("mtp.")]


def refusal(directory: Path, model: Model) -> str:
    with pytest.raises(CheckpointError) as caught:
        DraftNetwork.load(directory, model)
    return str(caught.value)


def test_every_single_missing_draft_tensor_is_named(editable: Any, model: Model, draft_names: list[str]) -> None:
    complete = dict(editable.index)
    assert len(draft_names) > 100
    for name in draft_names:
        editable.index = {other: shard for other, shard in complete.items() if other != name}
        editable.write_index()
        assert f"missing tensors (1): {name}" in refusal(editable.directory, model)
    editable.index = complete
    editable.write_index()
    DraftNetwork.load(editable.directory, model)


@pytest.mark.parametrize("name", ["mtp.0.ffn.shared_experts.w2.scale", "mtp.1.markov_head.head.weight"])
def test_a_draft_tensor_that_is_in_no_file_is_named(name: str, editable: Any, model: Model) -> None:
    editable.drop(name)
    assert f"missing tensors (1): {name}" in refusal(editable.directory, model)


@pytest.mark.parametrize(
    "name",
    [
        "mtp.0.norm.weight",
        "mtp.1.main_norm.weight",
        "mtp.2.attn_norm.weight",
        "mtp.1.markov_w1",
        "mtp.0.ffn.shared_experts.w4.weight",
        "mtp.0.ffn.experts.4.w1.weight",
        "mtp.0.hc_head_fn",
        "mtp.0.e_proj.weight",
    ],
)
def test_every_unexpected_draft_tensor_is_named(name: str, editable: Any, model: Model) -> None:
    editable.add(name, "BF16", [64], bytes(128))
    assert f"unexpected draft tensors: {name}" in refusal(editable.directory, model)


def test_copies_of_embedding_and_head_are_ignored(editable: Any, model: Model) -> None:
    vocab, hidden = model.config.vocab_size, model.config.hidden_size
    for name in ("mtp.0.embed.weight", "mtp.1.head.weight"):
        editable.add(name, "BF16", [vocab, hidden], bytes(2 * vocab * hidden))
    DraftNetwork.load(editable.directory, model)


@pytest.mark.parametrize("reader", ["plain", "fp8", "fp4", "fp8_blocks"])
def test_a_tensor_that_the_network_does_not_read_is_named(
    reader: str, random_checkpoint: Path, model: Model, monkeypatch: pytest.MonkeyPatch
) -> None:
    """As if the network had been written without it: its reader makes the weight up."""
    lost = {
        "plain": ("mtp.1.ffn.gate.bias",),
        "fp8": ("mtp.0.ffn.shared_experts.w2",),
        "fp4": ("mtp.1.ffn.experts.3.w2",),
        "fp8_blocks": ("mtp.0.attn.wo_a",),
    }[reader]
    real: Callable[..., Any] = getattr(Weights, reader)

    def forgetful(self: Weights, *names: Any) -> Any:
        if names[:1] != lost:
            return real(self, *names)
        return real(self, *(str(name).replace("mtp.1", "mtp.0") for name in names)) if reader == "plain" else ()

    monkeypatch.setattr(Weights, reader, forgetful)
    (name,) = lost
    wanted = name if reader == "plain" else f"{name}.scale, {name}.weight"
    assert f"draft tensors that nothing has read: {wanted}" in refusal(random_checkpoint, model)


def test_embedding_and_head_are_shared_with_the_model(random_checkpoint: Path, model: Model) -> None:
    network = DraftNetwork.load(random_checkpoint, model)
    ids = torch.tensor([7])
    row = model.parameters["embed.weight"][7].clone()
    try:
        model.parameters["embed.weight"][7] = 3.0
        assert (network._embedding.rows(ids) == 3.0).all()
    finally:
        model.parameters["embed.weight"][7] = row
    assert "embed.weight" not in network.parameters
    assert "head.weight" not in network.parameters


def test_a_checkpoint_without_draft_layers_has_no_drafter(tmp_path: Path) -> None:
    write_random_checkpoint(tmp_path / "plain")
    with pytest.raises(ConfigError, match="num_nextn_predict_layers is 0; the checkpoint has no drafter"):
        DraftNetwork.load(tmp_path / "plain", Model.load(tmp_path / "plain"))


def test_a_drafter_of_another_config_is_refused(editable: Any, model: Model) -> None:
    changed = replace(model.config, dspark_noise_token_id=9)
    (editable.directory / "config.json").write_text(json.dumps(changed.to_dict()))
    with pytest.raises(ConfigError, match=r"config\.json is not that of the model; both must be of one checkpoint"):
        DraftNetwork.load(editable.directory, model)


def test_a_small_config_gets_draft_layers_by_their_number_alone(
    tmp_path: Path, caplog: pytest.LogCaptureFixture
) -> None:
    config = small_config(num_nextn_predict_layers=3)
    assert config.compress_ratios == (0, 0, 2, 2, 1, 1, 1, 1, 0, 0, 0)
    assert config.dspark_target_layer_ids == (5, 6, 7)
    assert config.dspark_block_size == 5
    assert config.dspark_noise_token_id not in (config.bos_token_id, config.eos_token_id, config.pad_token_id)
    assert [config.experts(layer) for layer in (7, 8)] == [8, 4]
    assert [config.experts_per_token(layer) for layer in (7, 8)] == [2, 2]
    with caplog.at_level(logging.WARNING):
        write_random_checkpoint(tmp_path / "drafts", config)
        DraftNetwork.load(tmp_path / "drafts", Model.load(tmp_path / "drafts"))
    assert not caplog.records


def test_given_draft_keys_win_over_the_defaults_of_a_small_config() -> None:
    config = small_config(num_nextn_predict_layers=1, dspark_block_size=2, dspark_target_layer_ids=[0])
    assert (config.dspark_block_size, config.dspark_target_layer_ids) == (2, (0,))
    assert small_config().num_draft_layers == 0
