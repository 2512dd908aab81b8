"""The GPU that kernels of sm90 run on, and a checkpoint of the small model's dimensions."""

from __future__ import annotations

import importlib.util
import os
from pathlib import Path
from typing import Any

import pytest
import torch

from thalweg.model import small_config, write_random_checkpoint

SMALL_MODEL: dict[str, Any] = {
    "vocab_size": 512,
    "hidden_size": 256,
    "num_attention_heads": 8,
    "head_dim": 64,
    "qk_rope_head_dim": 32,
    "q_lora_rank": 128,
    "o_groups": 2,
    "o_lora_rank": 64,
    "n_routed_experts": 16,
    "num_experts_per_tok": 2,
    "moe_intermediate_size": 128,
    "sliding_window": 64,
    "index_n_heads": 8,
    "index_head_dim": 64,
    "index_topk": 64,
    "candidate_topk_blocks": 32,
    "candidate_block_size": 8,
    "engram_max_ngram_size": 4,
    "engram_n_heads": 4,
    "num_nextn_predict_layers": 1,
    "dspark_markov_rank": 64,
}


@pytest.fixture(scope="session")
def hopper() -> torch.device:
    """The CUDA device if it runs the kernels of sm90; skips without, and fails where THALWEG_REQUIRE claims it does."""
    missing = None
    if not torch.cuda.is_available():
        missing = "torch finds no CUDA device"
    elif torch.cuda.get_device_capability() != (9, 0):
        missing = "the CUDA device is no Hopper GPU"
    elif importlib.util.find_spec("tilelang") is None:
        missing = "tilelang is not installed"
    if missing is not None:
        (pytest.fail if os.environ.get("THALWEG_REQUIRE") == "sm90" else pytest.skip)(missing)
    return torch.device("cuda")


@pytest.fixture(scope="session")
def small_checkpoint(hopper: torch.device, tmp_path_factory: pytest.TempPathFactory) -> Path:
    """Random weights in the dimensions of the small trained model."""
    directory = tmp_path_factory.mktemp("small") / "checkpoint"
    write_random_checkpoint(directory, small_config(**SMALL_MODEL), seed=3)
    return directory
