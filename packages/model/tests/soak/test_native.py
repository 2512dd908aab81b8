"""More configs of the native model than a quick run has time for."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
import torch
from model_testing.native_pairs import WIDTHS, Pair, assert_steps_are_equal

VARIANTS: dict[str, dict[str, Any]] = {
    "an index-key source inside a stream": {"index_k_source_layer_ids": [2, 4, 6]},
    "no more candidates than selected entries": {"candidate_block_size": 2},
    "no candidates": {"candidate_source_layer_id": None},
    "producers only": {
        "compress_ratios": [2] * 8,
        "kv_source_layer_ids": [0, 4],
        "index_source_layer_ids": [0, 2, 4],
        "candidate_source_layer_id": None,
    },
    "selections of everything": {"index_topk": 64},
    "one expert per token": {"num_experts_per_tok": 1},
    "two streams": {"hc_mult": 2},
    "four output groups": {"o_groups": 4, "o_lora_rank": 32},
}


@pytest.mark.parametrize("name", VARIANTS)
def test_steps_over_the_cache_have_the_bits_of_the_reference(
    name: str, tmp_path: Path, make_cache: Callable[..., Any]
) -> None:
    tokens = torch.randint(5, WIDTHS["vocab_size"], (83,), generator=torch.Generator().manual_seed(6))
    assert_steps_are_equal(Pair.write(tmp_path / "checkpoint", **VARIANTS[name]), tokens, make_cache)
