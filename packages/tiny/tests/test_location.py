import json

from thalweg.tiny import checkpoint_path


def test_the_checkpoint_has_config_tokenizer_and_licence_notice() -> None:
    names = {file.name for file in checkpoint_path().iterdir()}
    assert {"config.json", "tokenizer.json", "model.safetensors.index.json", "NOTICE"} <= names


def test_every_indexed_shard_is_there_and_the_whole_is_small() -> None:
    index = json.loads((checkpoint_path() / "model.safetensors.index.json").read_text())
    shards = set(index["weight_map"].values())
    sizes = [(checkpoint_path() / name).stat().st_size for name in shards]
    assert len(sizes) == 2
    assert sum(sizes) < 24_000_000


def test_the_config_is_of_the_real_architecture() -> None:
    config = json.loads((checkpoint_path() / "config.json").read_text())
    assert config["architectures"] == ["DeepseekV41ForCausalLM"]
    assert config["text_config"]["num_hidden_layers"] == 10
