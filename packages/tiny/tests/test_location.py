import json
from typing import Any

from thalweg.tiny import checkpoint_path


def read(name: str) -> dict[str, Any]:
    document: dict[str, Any] = json.loads((checkpoint_path() / name).read_text(encoding="utf-8"))
    return document


def test_the_checkpoint_has_config_tokenizer_and_licence_notice() -> None:
    names = {file.name for file in checkpoint_path().iterdir()}
    assert {"config.json", "tokenizer.json", "model.safetensors.index.json", "NOTICE"} <= names


def test_every_indexed_shard_is_there_and_no_other() -> None:
    shards = set(read("model.safetensors.index.json")["weight_map"].values())
    assert {file.name for file in checkpoint_path().glob("*.safetensors")} == shards


def test_the_tensors_are_small() -> None:
    assert read("model.safetensors.index.json")["metadata"]["total_size"] <= 24_000_000


def test_the_config_is_of_the_real_architecture() -> None:
    config = read("config.json")
    assert config["architectures"] == ["DeepseekV41ForCausalLM"]
    assert config["text_config"]["num_hidden_layers"] == 10
    assert config["text_config"]["max_position_embeddings"] == 8192


def test_the_drafter_is_there() -> None:
    config, names = read("config.json")["text_config"], read("model.safetensors.index.json")["weight_map"]
    assert (config["num_nextn_predict_layers"], config["dspark_block_size"]) == (3, 5)
    assert {name.split(".")[1] for name in names if name.startswith("mtp.")} == {"0", "1", "2"}


def test_the_notice_names_the_works_that_it_was_trained_on() -> None:
    notice = (checkpoint_path() / "NOTICE").read_text(encoding="utf-8")
    for work in ("Python", "SymPy", "pandas", "Django", "SciPy", "NumPy", "SQLAlchemy", "Matplotlib"):
        assert work in notice, work
