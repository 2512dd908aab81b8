"""Checkpoints that packed formats can hold, each loaded as the native model and as the reference in float32."""

from __future__ import annotations

import functools
from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import torch
from model_testing.paged_cache import PagedCache, Running

from thalweg.model import DraftNetwork, Model, NativeDraftNetwork, NativeModel, small_config, write_random_checkpoint

WIDTHS: dict[str, Any] = {"hidden_size": 256, "moe_intermediate_size": 128, "vocab_size": 288}
"""Expert weights are packed in tiles of so many rows and columns."""
NUM_POSITIONS = 128


@dataclass(frozen=True)
class Pair:
    """One checkpoint, loaded both ways: the reference with float32 sums is what native ops are composed to equal."""

    directory: Path
    native: NativeModel
    reference: Model

    @classmethod
    def write(cls, directory: Path, **text: Any) -> Pair:
        write_random_checkpoint(directory, small_config(**WIDTHS, **text), seed=3)
        native = NativeModel.load(directory, num_positions=NUM_POSITIONS)
        return cls(directory, native, Model.load(directory, "quant", "float32"))

    @functools.cached_property
    def networks(self) -> tuple[NativeDraftNetwork, DraftNetwork]:
        return (
            NativeDraftNetwork.load(self.directory, self.native),
            DraftNetwork.load(self.directory, self.reference),
        )


def stacked(running: Running) -> torch.Tensor:
    """Logits of all positions of a sequence."""
    return torch.stack([running.logits[position] for position in sorted(running.logits)])


def assert_steps_are_equal(pair: Pair, tokens: torch.Tensor, make_cache: Callable[..., PagedCache]) -> None:
    """Two sequences in chunks, then decoded together: logits and everything in the cache must be the same bits."""
    found = []
    for model in (pair.native, pair.reference):
        cache = make_cache(model, seed=4)
        running, other = cache.add(tokens), cache.add(tokens[:40])
        cache.prefill([(running, 37), (other, 1)])
        cache.prefill([(other, 20), (running, 40)])
        cache.decode([(other, 1), (running, 3)], placeholders=2)
        cache.decode([(running, 1), (other, 2)])
        found.append((stacked(running), stacked(other), cache.values(running)))
    assert torch.equal(found[0][0], found[1][0])
    assert torch.equal(found[0][1], found[1][1])
    for key, value in found[1][2].items():
        assert torch.equal(found[0][2][key], value), key
