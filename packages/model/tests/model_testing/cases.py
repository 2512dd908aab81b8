"""Checkpoints with draft layers, each loaded as the package does and as the dense drafter does."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import torch
from model_testing.dense_drafter import DenseDrafter
from model_testing.dense_features import dense_features
from model_testing.paged_cache import PagedCache
from torch import Tensor

from thalweg.model import CachedDrafter, Checkpoint, DraftNetwork, Model, small_config, write_random_checkpoint

TINY_A = Path(__file__).parents[1] / "golden" / "tiny_a"
CONFIGS: dict[str, dict[str, Any]] = {
    "two layers, a target with Engram": {
        "num_nextn_predict_layers": 2,
        "dspark_target_layer_ids": [3, 5, 6],
        "vocab_size": 288,
    },
    "two layers, tied head, one expert, small window": {
        "num_nextn_predict_layers": 2,
        "dspark_target_layer_ids": [0, 7],
        "dspark_block_size": 4,
        "dspark_num_experts_per_tok": 1,
        "dspark_n_routed_experts": 3,
        "dspark_markov_rank": 16,
        "sliding_window": 5,
        "tie_word_embeddings": True,
        "hc_mult": 2,
        "vocab_size": 288,
    },
}
NAMES = ("tiny_a", *CONFIGS)


@dataclass(frozen=True)
class Case:
    """A checkpoint, loaded both ways."""

    directory: Path
    mode: str
    model: Model
    network: DraftNetwork

    @classmethod
    def load(cls, directory: Path, mode: str = "quant", arithmetic: str = "exact") -> Case:
        model = Model.load(directory, mode, arithmetic)
        return cls(directory, mode, model, DraftNetwork.load(directory, model))

    def dense(self, trap: str = "") -> DenseDrafter:
        return DenseDrafter(self.directory, self.mode, trap)

    def tokens(self, count: int, seed: int = 0) -> Tensor:
        return torch.randint(5, self.model.config.vocab_size, (count,), generator=torch.Generator().manual_seed(seed))

    def features(self, tokens: Tensor, trap: str = "") -> Tensor:
        with Checkpoint.open(self.directory) as checkpoint:
            return dense_features(self.model, checkpoint, tokens, trap)

    def cache(self, temperatures: Sequence[float], **size: int | None) -> PagedCache:
        """A cache with a drafter of as many drafts as there are temperatures."""
        cache = PagedCache(self.model, **size)
        cache.drafter = CachedDrafter(self.network, cache.views, len(temperatures), tuple(temperatures))
        return cache


def case_directory(name: str, make_directory: Callable[[], Path]) -> Path:
    """Where the checkpoint of a name lies; random ones are written."""
    if name == "tiny_a":
        return TINY_A
    path = make_directory() / "checkpoint"
    write_random_checkpoint(path, small_config(**CONFIGS[name]), seed=5)
    return path
