"""Checkpoints that tests can damage in one precise way."""

from __future__ import annotations

import functools
import json
import shutil
import sys
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest

from thalweg.model import ModelConfig, small_config, write_random_checkpoint
from thalweg.model.safetensors_writer import header_bytes

sys.path.insert(0, str(Path(__file__).parent))

from model_testing.cases import Case, case_directory
from model_testing.paged_cache import PagedCache

INDEX = "model.safetensors.index.json"


class EditableCheckpoint:
    """A checkpoint directory whose headers and index can be rewritten tensor by tensor."""

    def __init__(self, directory: Path) -> None:
        self.directory = directory
        self.index: dict[str, str] = json.loads((directory / INDEX).read_text())["weight_map"]

    def shard(self, name: str) -> Path:
        return self.directory / self.index[name]

    def write_index(self) -> None:
        (self.directory / INDEX).write_text(json.dumps({"metadata": {}, "weight_map": self.index}))

    def rewrite(self, shard: Path, change: Callable[[dict[str, Any]], None]) -> None:
        """Let `change` edit name -> [dtype, shape, payload] of a file, then write it back."""
        raw = shard.read_bytes()
        length = int.from_bytes(raw[:8], "little")
        header = json.loads(raw[8 : 8 + length])
        header.pop("__metadata__", None)
        data = raw[8 + length :]
        tensors = {
            name: [entry["dtype"], entry["shape"], data[slice(*entry["data_offsets"])]]
            for name, entry in header.items()
        }
        change(tensors)
        with shard.open("wb") as file:
            file.write(header_bytes((n, d, tuple(s), len(payload)) for n, (d, s, payload) in tensors.items()))
            for _, _, payload in tensors.values():
                file.write(payload)

    def drop(self, name: str) -> None:
        self.rewrite(self.shard(name), lambda tensors: tensors.pop(name))
        del self.index[name]
        self.write_index()

    def add(self, name: str, dtype: str, shape: list[int], payload: bytes, beside: str = "norm.weight") -> None:
        shard = self.shard(beside)
        self.rewrite(shard, lambda tensors: tensors.update({name: [dtype, shape, payload]}))
        self.index[name] = shard.name
        self.write_index()

    def rename(self, old: str, new: str, *, in_index: bool = True, in_shard: bool = True) -> None:
        shard = self.shard(old)
        if in_shard:
            self.rewrite(shard, lambda tensors: tensors.update({new: tensors.pop(old)}))
        if in_index:
            del self.index[old]
            self.index[new] = shard.name
            self.write_index()

    def alter(self, name: str, dtype: str, shape: list[int], payload: bytes) -> None:
        self.rewrite(self.shard(name), lambda tensors: tensors.update({name: [dtype, shape, payload]}))


DRAFTS: dict[str, Any] = {
    "num_nextn_predict_layers": 2,
    "compress_ratios": [0, 0, 2, 2, 1, 1, 1, 1, 0, 0],
    "dspark_block_size": 3,
    "dspark_markov_rank": 32,
    "dspark_target_layer_ids": [5, 6],
    "dspark_n_routed_experts": 4,
    "dspark_num_experts_per_tok": 2,
    "dspark_noise_token_id": 3,
}


@pytest.fixture(scope="session")
def released() -> dict[str, Any]:
    """config.json of the released model."""
    document: dict[str, Any] = json.loads((Path(__file__).parent / "released/config.json").read_text())
    return document


@pytest.fixture(scope="session")
def draft_config() -> ModelConfig:
    """A small config with two draft layers."""
    return small_config(**DRAFTS)


@pytest.fixture(scope="session")
def random_checkpoint(tmp_path_factory: pytest.TempPathFactory, draft_config: ModelConfig) -> Path:
    """A sound checkpoint with draft layers; not to be written to."""
    directory = tmp_path_factory.mktemp("random") / "checkpoint"
    write_random_checkpoint(directory, draft_config)
    return directory


@pytest.fixture
def editable(random_checkpoint: Path, tmp_path: Path) -> EditableCheckpoint:
    """A copy of the sound checkpoint to damage."""
    shutil.copytree(random_checkpoint, tmp_path / "copy")
    return EditableCheckpoint(tmp_path / "copy")


@pytest.fixture(scope="session")
def make_cache() -> Callable[..., PagedCache]:
    """PagedCache(model, num_blocks, num_slots, seed)."""
    return PagedCache


@pytest.fixture(scope="session")
def load_case(tmp_path_factory: pytest.TempPathFactory) -> Callable[..., Case]:
    """Case(name, mode, arithmetic) of the checkpoints in `model_testing.cases`, loaded once each."""
    directory = functools.cache(lambda name: case_directory(name, lambda: tmp_path_factory.mktemp("drafts")))
    return functools.cache(lambda name, mode="quant", arithmetic="exact": Case.load(directory(name), mode, arithmetic))
