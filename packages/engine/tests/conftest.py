"""Fixtures shared by the engine's tests."""

import importlib.util
import os
import sys
from pathlib import Path
from typing import Any

import pytest
import tokenizers
import torch
from hypothesis import HealthCheck, settings
from tokenizers import AddedToken, decoders, models, pre_tokenizers, trainers

from thalweg.engine.tokenizer import Tokenizer
from thalweg.model import small_config, write_random_checkpoint

sys.path.insert(0, str(Path(__file__).parent))

from engine_testing.bench import Bench, MakeBench
from engine_testing.cores import MODES
from engine_testing.served import Served

# A busy machine must not fail a property.
settings.register_profile("patient", deadline=None, suppress_health_check=[HealthCheck.too_slow])
settings.load_profile("patient")

TRAINING_TEXT = [
    "the quick brown fox jumps over the lazy dog, again and again",
    "ゆるやかな谷底をたどる川の流れ、天気は晴れ",
    "河流沿着山谷最低处前行，春水初生",  # noqa: RUF001
    "🌊🚣‍♀️ 👩‍👩‍👧‍👦 🏞️ naïve café Ünïcödé",
]


def build_byte_level(vocab_size: int = 420) -> tokenizers.Tokenizer:
    """A byte-level BPE trained on the spot: specials at 0..2, then one added token that is not special."""
    tokenizer = tokenizers.Tokenizer(models.BPE())
    tokenizer.pre_tokenizer = pre_tokenizers.ByteLevel(add_prefix_space=False)
    tokenizer.decoder = decoders.ByteLevel()
    trainer = trainers.BpeTrainer(
        vocab_size=vocab_size,
        show_progress=False,
        initial_alphabet=pre_tokenizers.ByteLevel.alphabet(),
        special_tokens=["<｜begin▁of▁sentence｜>", "<｜end▁of▁sentence｜>", "<｜▁pad▁｜>"],  # noqa: RUF001
    )
    tokenizer.train_from_iterator(TRAINING_TEXT, trainer)
    tokenizer.add_tokens([AddedToken("<｜User｜>", special=False), AddedToken("<think>", special=False)])  # noqa: RUF001
    return tokenizer


@pytest.fixture
def hopper() -> torch.device:
    """A GPU that the backend sm90 runs on; skips without one, and fails where THALWEG_REQUIRE claims that there is."""
    missing = None
    if not torch.cuda.is_available() or torch.cuda.get_device_capability() != (9, 0):
        missing = "torch finds no Hopper GPU"
    elif importlib.util.find_spec("tilelang") is None:
        missing = "tilelang is not installed"
    if missing is not None:
        (pytest.fail if os.environ.get("THALWEG_REQUIRE") == "sm90" else pytest.skip)(missing)
    return torch.device("cuda")


@pytest.fixture(scope="session")
def raw_tokenizer() -> tokenizers.Tokenizer:
    return build_byte_level()


@pytest.fixture(scope="session")
def tokenizer(raw_tokenizer: tokenizers.Tokenizer) -> Tokenizer:
    return Tokenizer(raw_tokenizer, bos_token_id=0, eos_token_id=1, pad_token_id=2, vocab_size=512)


@pytest.fixture(params=MODES)
def make_bench(request: pytest.FixtureRequest, tokenizer: Tokenizer) -> MakeBench:
    """Benches of every core in either mode."""
    core, is_async = request.param

    def make(**options: Any) -> Bench:
        return Bench(tokenizer, core=core, async_scheduling=is_async, **options)

    return make


@pytest.fixture
def bench(make_bench: MakeBench) -> Bench:
    return make_bench()


@pytest.fixture
def served(make_bench: MakeBench) -> Served:
    return Served(make_bench)


TWO_LAYERS: dict[str, Any] = {
    "num_hidden_layers": 2,
    "compress_ratios": [2, 1],
    "kv_source_layer_ids": [0, 1],
    "index_source_layer_ids": [0, 1],
    "candidate_source_layer_id": 1,
    "engram_layer_ids": [1],
}


@pytest.fixture(scope="session")
def drafting_checkpoint(tmp_path_factory: pytest.TempPathFactory) -> str:
    """A smaller one with a drafter of one layer and three tokens."""
    path = tmp_path_factory.mktemp("drafting") / "checkpoint"
    write_random_checkpoint(path, small_config(**TWO_LAYERS, num_nextn_predict_layers=1, dspark_block_size=3), seed=5)
    return str(path)


@pytest.fixture(scope="session")
def checkpoint(tmp_path_factory: pytest.TempPathFactory) -> str:
    """A random small model, to be read only."""
    path = tmp_path_factory.mktemp("checkpoint") / "random"
    write_random_checkpoint(path, seed=4)
    return str(path)
