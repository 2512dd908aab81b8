"""Engines on a GPU for tests, prompts that look like text, and drafters that know it."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import numpy as np
import torch

from thalweg.engine.model_device import ModelDevice
from thalweg.interfaces import DraftRows, DraftSampler, TargetRows
from thalweg.model import small_config, write_random_checkpoint


def on_sm90(**options: Any) -> dict[str, Any]:
    """Options of an engine on the GPU."""
    return {"backend": "sm90", "check_lengths": True} | options


def row_by_row(**options: Any) -> dict[str, Any]:
    """Options of one there whose logits do not depend on how many rows a step has, so that texts can be compared."""
    return on_sm90(batch_invariant=True, verification="coupled", **options)


def prompts(count: int, vocab_size: int, *, seed: int = 0, longest: int = 60) -> list[list[int]]:
    """Random ids of random lengths, a few tokens said again and again."""
    random = np.random.default_rng(seed)
    lengths = random.integers(1, longest, count)
    return [[0, *random.choice(random.integers(5, vocab_size, 12), length).tolist()] for length in lengths]


def write_drafting_checkpoint(path: Path, **changes: Any) -> None:
    """Random weights with the widths of the embedded checkpoint and of its drafter.

    changes: of the config.
    """
    from thalweg.tiny import checkpoint_path  # not a dependency of tests without a GPU

    text = json.loads((checkpoint_path() / "config.json").read_text())["text_config"]
    for name in ("engram_num_embeddings", "engram_compressed_vocab_size"):
        del text[name]
    write_random_checkpoint(path, small_config(**text | changes), seed=4)


class TextDrafter:
    """Drafts what a greedy run without drafts has said, wrong at every fourth position; on the GPU.

    texts: of every sequence, in the order in which they are added, prompt included.
    """

    draft_length = 3
    target_layer_ids = ()

    def __init__(self, texts: list[list[int]]) -> None:
        table = torch.zeros(len(texts), max(map(len, texts)) + 1 + self.draft_length, dtype=torch.int32)
        for row, text in enumerate(texts):
            table[row, : len(text)] = torch.tensor(text)
        table[:, ::4] = 5
        self._table = table.cuda()

    def observe(self, rows: TargetRows) -> None:
        """It knows what will be said."""

    def propose(self, rows: DraftRows, sampler: DraftSampler) -> tuple[torch.Tensor, torch.Tensor]:
        """Reads the table."""
        numbers = rows.sequence_ids % self._table.shape[0]
        sequences = torch.from_numpy(numbers).pin_memory().to("cuda", non_blocking=True)
        places = rows.positions[:, None] + 1 + torch.arange(self.draft_length, device="cuda")
        places = places.clamp(max=self._table.shape[1] - 1).long()
        drafts = self._table[sequences[:, None], places]
        return drafts, torch.full(drafts.shape, 0.8, device="cuda")


class LogitWatch:
    """What the sampler saw: the logits of every row, by (sequence, context length)."""

    def __init__(self) -> None:
        self.rows: dict[tuple[int, int], torch.Tensor] = {}
        self._sample = ModelDevice.sample

    def sample(self, device: ModelDevice, forwarded: Any, inputs: Any) -> Any:
        """In place of `ModelDevice.sample`."""
        contexts = forwarded.prepared.context_lengths.tolist()
        logits = forwarded.logits.cpu()
        for row, (sequence, context) in enumerate(zip(inputs.sequence_ids.tolist(), contexts, strict=True)):
            if inputs.makes_output[row]:
                self.rows[sequence, context] = logits[row]
        return self._sample(device, forwarded, inputs)
