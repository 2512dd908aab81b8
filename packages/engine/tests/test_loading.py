"""What an engine says of models and draft networks that were loaded before."""

from __future__ import annotations

from pathlib import Path

import pytest

from thalweg.engine import EngineConfig, build_engine
from thalweg.interfaces import ConfigError
from thalweg.model import DraftNetwork, Model, NativeModel, small_config, write_random_checkpoint


@pytest.fixture(scope="module")
def path(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A checkpoint whose experts fill whole tiles, with a drafter."""
    directory = tmp_path_factory.mktemp("loading") / "checkpoint"
    config = small_config(hidden_size=256, moe_intermediate_size=128, num_nextn_predict_layers=1)
    write_random_checkpoint(directory, config, seed=6)
    return directory


def config_for(path: Path, arithmetic: str) -> EngineConfig:
    return EngineConfig.build(environ={}, model=str(path), arithmetic=arithmetic, max_model_len=128, max_num_seqs=2)


def test_a_model_of_another_arithmetic_is_refused(path: Path) -> None:
    with pytest.raises(ConfigError, match="arithmetic is 'native', and the given model is a Model; 'native' goes with"):
        build_engine(config_for(path, "native"), model=Model.load(path))


def test_a_draft_network_of_another_arithmetic_is_refused(path: Path) -> None:
    network = DraftNetwork.load(path, Model.load(path))
    with pytest.raises(ConfigError, match="'native', and the given draft network is a DraftNetwork; 'native' goes"):
        build_engine(config_for(path, "native"), draft_network=network)


def test_a_model_of_too_few_positions_is_refused(path: Path) -> None:
    model = NativeModel.load(path, num_positions=128)
    with pytest.raises(ConfigError, match="has num_positions 128; max_model_len 128 and drafts behind it need 138"):
        build_engine(config_for(path, "native"), model=model)


def test_a_model_of_all_positions_has_those_of_drafts_in_flight(path: Path) -> None:
    model = NativeModel.load(path)
    longest = model.config.max_position_embeddings
    options = {"arithmetic": "native", "async_scheduling": True, "max_num_seqs": 1, "num_blocks": 48}
    config = EngineConfig.build(environ={}, model=str(path), max_model_len=longest, **options)
    build_engine(config, model=model).close()
