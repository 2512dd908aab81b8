"""The native drafter proposes what the reference with float32 sums proposes, from the same rings."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import torch
from model_testing.draft_session import RecordingSampler

from thalweg.model import CachedDrafter

TEMPERATURES = (1.0, 0.7, 2.0)


def test_drafts_have_the_bits_of_the_reference(
    load_pair: Callable[..., Any], native_tokens: torch.Tensor, make_cache: Callable[..., Any]
) -> None:
    pair = load_pair(
        num_hidden_layers=3,
        compress_ratios=(0, 1, 1),
        kv_source_layer_ids=(1,),
        index_source_layer_ids=(1,),
        candidate_source_layer_id=None,
        engram_layer_ids=(1,),
        num_nextn_predict_layers=2,
        dspark_target_layer_ids=(0, 1),
    )
    found: list[list[torch.Tensor]] = []
    for model, network in zip((pair.native, pair.reference), pair.networks, strict=True):
        cache = make_cache(model)
        cache.drafter = CachedDrafter(network, cache.views, len(TEMPERATURES), TEMPERATURES)
        group = [cache.add(native_tokens), cache.add(native_tokens[40:70])]
        cache.prefill([(group[0], 60), (group[1], 2)])
        found.append(propose(cache, group))
        cache.decode([(group[0], 2), (group[1], 3)], placeholders=1)
        group[0].done -= 1  # its last row was a draft that did not hold
        found[-1] += propose(cache, group)
    for mine, theirs in zip(*found, strict=True):
        assert torch.equal(mine, theirs)


def propose(cache: Any, group: Any) -> list[torch.Tensor]:
    sampler = RecordingSampler(7)
    anchors = [int(running.tokens[running.done]) for running in group]
    return [*cache.propose(group, anchors, sampler), *sampler.logits]
