"""Small models with draft layers, and random ones."""

from __future__ import annotations

import tempfile
from functools import cache
from pathlib import Path
from typing import Any

import numpy as np

from rollback_testing.bench import Bench
from rollback_testing.cases import random_text
from rollback_testing.history import History, record_histories
from thalweg.model import DraftNetwork, Model, ModelConfig, small_config, write_random_checkpoint

TINY_A = Path(__file__).parents[2] / "packages" / "model" / "tests" / "golden" / "tiny_a"
"""Window 16, ratios 0, 2 and 1, one draft layer, blocks of 3."""

TWO_LAYERS: dict[str, Any] = {
    "num_hidden_layers": 2,
    "compress_ratios": [2, 1],
    "kv_source_layer_ids": [0, 1],
    "index_source_layer_ids": [0, 1],
    "candidate_source_layer_id": 1,
    "engram_layer_ids": [1],
}
"""Both ratios, an indexer that chooses, and Engram."""

_LAYOUTS: tuple[dict[str, Any], ...] = (
    TWO_LAYERS,
    {
        "num_hidden_layers": 4,
        "compress_ratios": [0, 2, 1, 1],
        "kv_source_layer_ids": [1, 2],
        "index_source_layer_ids": [1, 2, 3],
        "candidate_source_layer_id": 2,
        "engram_layer_ids": [0],
    },
    {
        "num_hidden_layers": 3,
        "compress_ratios": [2, 2, 2],
        "kv_source_layer_ids": [0, 1],
        "index_source_layer_ids": [0, 1, 2],
        "candidate_source_layer_id": None,
        "engram_layer_ids": [],
    },
)


@cache
def tiny_a() -> tuple[Model, DraftNetwork]:
    """The recorded model, exact, with its drafter."""
    model = Model.load(TINY_A)
    return model, DraftNetwork.load(TINY_A, model)


@cache
def tiny_bench() -> Bench:
    """The recorded model with drafts of full length."""
    return Bench(*tiny_a(), draft_length=3)


@cache
def tiny_history() -> History:
    """A short text, from its second token on."""
    return record_histories(tiny_bench(), [random_text(1, tiny_a()[0].config.vocab_size, 64)])[0]


@cache
def tiny_late_history() -> History:
    """A text that crosses into the second block, from its 120th token on."""
    return record_histories(tiny_bench(), [random_text(2, tiny_a()[0].config.vocab_size, 152)], prefilled=119)[0]


def random_config(random: np.random.Generator) -> ModelConfig:
    """Small windows, blocks of drafts and layers of many kinds."""
    layout = _LAYOUTS[random.integers(len(_LAYOUTS))]
    targets = random.permutation(layout["num_hidden_layers"])[: random.integers(1, 4)]
    return small_config(
        **layout,
        sliding_window=int(random.integers(3, 24)),
        index_topk=int(random.choice([8, 16, 24])),
        num_nextn_predict_layers=int(random.integers(1, 4)),
        dspark_block_size=int(random.integers(2, 7)),
        dspark_target_layer_ids=sorted(targets.tolist()),
    )


def random_bench(seed: int) -> Bench:
    """A random model of a random config, drafting any number of tokens that it can."""
    random = np.random.default_rng(seed)
    with tempfile.TemporaryDirectory() as directory:
        path = Path(directory) / "checkpoint"
        config = write_random_checkpoint(path, random_config(random), seed)
        model = Model.load(path)
        network = DraftNetwork.load(path, model)
    draft_length = max(random.integers(1, config.dspark_block_size + 1, 2).tolist())
    return Bench(model, network, draft_length, num_lanes=64)
