"""Configs that switch a mechanism off or set it to an edge: steps over the cache still equal one whole pass."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
import torch

from thalweg.model import Model, Trace, small_config, write_random_checkpoint

VARIANTS: dict[str, dict[str, Any]] = {
    "no Engram": {"engram_layer_ids": []},
    "no YaRN": {"rope_scaling": None},
    "MXFP8 streams": {"use_fp4_sparse_kv": False},
    "tied head": {"tie_word_embeddings": True},
    "no candidates": {"candidate_source_layer_id": None},
    "no more candidates than selected entries": {"candidate_block_size": 2},
    "an index-key source inside a stream": {"index_k_source_layer_ids": [2, 4, 6]},
    "window only": {
        "compress_ratios": [0] * 8,
        "kv_source_layer_ids": [],
        "index_source_layer_ids": [],
        "candidate_source_layer_id": None,
    },
    "ratio 1 only": {
        "compress_ratios": [0, 1, 1, 1, 1, 1, 1, 1],
        "kv_source_layer_ids": [1],
        "index_source_layer_ids": [1, 4],
        "candidate_source_layer_id": 1,
    },
    "producers only": {
        "compress_ratios": [2] * 8,
        "kv_source_layer_ids": [0, 4],
        "index_source_layer_ids": [0, 2, 4],
        "candidate_source_layer_id": None,
    },
    "selections of everything": {"index_topk": 64},
    "one expert per token": {"num_experts_per_tok": 1},
}


@pytest.fixture
def load_variant(tmp_path: Path) -> Callable[..., Model]:
    def load(name: str, mode: str = "quant") -> Model:
        write_random_checkpoint(tmp_path / "checkpoint", small_config(**VARIANTS[name]), seed=11)
        return Model.load(tmp_path / "checkpoint", mode)

    return load


@pytest.mark.parametrize("name", VARIANTS)
def test_steps_over_the_cache_equal_a_whole_pass(
    name: str, load_variant: Callable[..., Model], make_cache: Callable[..., Any]
) -> None:
    model = load_variant(name)
    tokens = torch.randint(5, model.config.vocab_size, (83,), generator=torch.Generator().manual_seed(2))
    (whole,) = model.forward_sequences([tokens])
    cache = make_cache(model)
    running, other = cache.add(tokens), cache.add(tokens[:40])
    cache.prefill([(running, 37), (other, 1)])
    cache.prefill([(other, 20), (running, 42)])
    while running.done < len(tokens):
        cache.decode([(other, 1), (running, 1)])
    assert torch.equal(torch.stack([running.logits[p] for p in range(len(tokens))]), whole)
    assert torch.equal(torch.stack([other.logits[p] for p in range(other.done)]), whole[: other.done])


def test_a_restricted_selection_stays_inside_the_published_blocks(load_variant: Callable[..., Model]) -> None:
    model, trace = load_variant("no more candidates than selected entries"), Trace()
    tokens = torch.randint(5, model.config.vocab_size, (83,), generator=torch.Generator().manual_seed(2))
    model.forward_sequences([tokens], trace=trace)
    for row in range(len(tokens)):
        blocks = {int(block) for block in trace["blocks", 4][row] if block >= 0}
        inside = [entry for entry in range(row + 1) if entry // 2 in blocks]
        chosen = [int(entry) for entry in trace["topk", 6][row] if entry >= 0]
        assert chosen == inside[: len(chosen)] if len(inside) <= 16 else set(chosen) <= set(inside)
        assert len(chosen) == min(16, len(inside))
        assert row // 2 in blocks
