"""Bounded replay on the native model has the bits of the reference with float32 sums."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import pytest
import torch
from model_testing.replay import Replay, prefill


@pytest.mark.parametrize("mode", ["mask", "compact"])
def test_replayed_prompts_have_the_bits_of_the_reference(
    mode: str, load_pair: Callable[..., Any], native_tokens: torch.Tensor, make_cache: Callable[..., Any]
) -> None:
    pair, found = load_pair(), []
    replay = Replay(mode, pair.native.config.sliding_window + 6)
    for model in (pair.native, pair.reference):
        cache = make_cache(model, seed=4)
        running, other = cache.add(native_tokens[:75]), cache.add(native_tokens[:20])
        prefill(cache, [(running, 37), (other, 1)], replay)
        prefill(cache, [(other, 19), (running, 38)], replay)
        running.tokens = native_tokens
        for _ in range(2):
            cache.decode([(running, 1)])
        found.append((running.logits, other.logits, cache.values(running)))
    for native, reference in zip(*found, strict=True):
        assert native.keys() == reference.keys()
        for key, value in reference.items():
            assert torch.equal(native[key], value), key
