"""What a native model refuses, and that a message says what is needed."""

from __future__ import annotations

import re
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
import torch

from thalweg.interfaces import ConfigError
from thalweg.kernels import bind
from thalweg.model import Model, NativeDraftNetwork, NativeModel, small_config, write_random_checkpoint
from thalweg.model.native.dummy import DummyTensors, dummy_vocabulary


def test_a_cache_of_plain_records_is_refused(
    load_pair: Callable[..., Any], native_tokens: torch.Tensor, make_cache: Callable[..., Any]
) -> None:
    pair = load_pair()
    cache = make_cache(Model.load(pair.directory, "plain"))
    running = cache.add(native_tokens)
    cache.model = pair.native
    with pytest.raises(ConfigError, match=r"window records of the cache have 512 bytes; quant mode .* needs 66"):
        cache.prefill([(running, 4)])


@pytest.mark.parametrize("embeddings", [None, torch.zeros(2, 3)], ids=["none", "too narrow"])
def test_an_image_mask_needs_embeddings(
    embeddings: torch.Tensor | None,
    load_pair: Callable[..., Any],
    native_tokens: torch.Tensor,
    make_cache: Callable[..., Any],
) -> None:
    cache = make_cache(load_pair().native)
    running = cache.add(native_tokens)
    images: dict[str, Any] = {"image_mask": torch.tensor([False, True, True]), "image_embeddings": embeddings}
    found = None if embeddings is None else (2, 3)
    with pytest.raises(ConfigError, match=re.escape(f"image_embeddings is {found}; with an image_mask")):
        cache.prefill([(running, 3)], **images)


def test_engram_layers_need_a_vocabulary() -> None:
    config = small_config()
    with pytest.raises(ConfigError, match=r"engram_layer_ids is \[1, 3\] but there is no Engram vocabulary"):
        NativeModel(config, DummyTensors(config, "cpu"), bind("cpu"), None, num_positions=8)


def test_a_model_has_a_position() -> None:
    config = small_config()
    with pytest.raises(ConfigError, match="num_positions is 0; it must be at least 1"):
        NativeModel(config, DummyTensors(config, "cpu"), bind("cpu"), dummy_vocabulary(config), num_positions=0)


def test_no_device_but_the_cpu_gets_the_ops_of_the_cpu(tmp_path: Path) -> None:
    with pytest.raises(ConfigError, match="ops is None with device cuda; give those of its backend"):
        NativeModel.load(tmp_path, device="cuda")


def test_a_checkpoint_without_draft_layers_has_no_drafter(load_pair: Callable[..., Any]) -> None:
    pair = load_pair()
    with pytest.raises(ConfigError, match="num_nextn_predict_layers is 0"):
        NativeDraftNetwork.load(pair.directory, pair.native)


def test_experts_that_do_not_fill_whole_tiles_are_refused(tmp_path: Path) -> None:
    write_random_checkpoint(tmp_path / "checkpoint", small_config())
    with pytest.raises(ConfigError, match=r"features of an expert is \d+; it must be a positive multiple of"):
        NativeModel.load(tmp_path / "checkpoint", num_positions=8)
