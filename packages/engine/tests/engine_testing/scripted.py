"""A model and a drafter that say what a test wants, for engines whose other parts are the real ones."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from types import SimpleNamespace
from typing import Any

import numpy as np
import torch
from numpy.typing import NDArray

from thalweg.engine.tokenizer import Tokenizer
from thalweg.interfaces import DraftRows, DraftSampler, TargetRows
from thalweg.model.metadata import ForwardBatch

LETTERS = "abcdefghijklmnopqrstuvwxyz"
VOCAB = 512


class ScriptedModel:
    """Continues every token with the next letter of the alphabet, or what `say` makes of it; with a later one if that
    may not be drawn.

    Satisfies what `thalweg.engine.model_device.ModelDevice` uses of a model. It reads no cache, so it shows wrong
    tokens, not wrong positions.
    """

    def __init__(self, tokenizer: Tokenizer) -> None:
        self.letters = [tokenizer.encode(letter, add_bos=False)[0] for letter in LETTERS]
        self.say: Callable[[int], int] = lambda token_id: token_id
        self.broken: Callable[[int], bool] = lambda token_id: False
        self.on_forward: Callable[[int], None] = lambda number: None
        """Called on the device's thread with the number of the forward pass, from 0."""
        self.batches: list[ForwardBatch] = []
        self.vocabulary = None
        self.config = SimpleNamespace(vocab_size=VOCAB)

    def paged_memory(self, pools: Any, metadata: Any, positions: torch.Tensor) -> None:
        """No cache is read."""

    def forward(self, batch: ForwardBatch, memory: None, features: None = None) -> torch.Tensor:
        self.batches.append(batch)
        self.on_forward(len(self.batches) - 1)
        return batch.token_ids

    def logits(self, hidden: torch.Tensor) -> torch.Tensor:
        values = torch.full((hidden.shape[0], VOCAB), -10.0)
        for row, token_id in enumerate(hidden.tolist()):
            following = self.after(token_id)
            first = self.letters.index(following)
            values[row, self.letters[first:]] = 5.0 - torch.arange(len(LETTERS) - first) / 10
            values[row, self.say(following)] = torch.nan if self.broken(following) else 10.0
        return values

    def after(self, token_id: int) -> int:
        """The letter that follows a token; "a" after anything else."""
        index = self.letters.index(token_id) if token_id in self.letters else -1
        return self.letters[(index + 1) % len(self.letters)]


class ScriptedDrafter:
    """Drafts what the model will say, wrong at the places that `is_wrong(sequence id, position)` names.

    Confidences are a function of position and place, so that verify lengths vary when they are shared out by them.
    """

    def __init__(self, model: ScriptedModel, draft_length: int) -> None:
        self._model = model
        self._draft_length = draft_length
        self.is_wrong: Callable[[int, int], bool] = lambda sequence_id, position: False

    @property
    def draft_length(self) -> int:
        return self._draft_length

    @property
    def target_layer_ids(self) -> tuple[int, ...]:
        return ()

    def observe(self, rows: TargetRows) -> None:
        """It knows what the model will say."""

    def propose(self, rows: DraftRows, sampler: DraftSampler) -> tuple[torch.Tensor, torch.Tensor]:
        drafts = torch.empty((rows.sequence_ids.size, self._draft_length), dtype=torch.int32)
        confidences = torch.empty(drafts.shape, dtype=torch.float32)
        for row, (sequence, position, token_id) in enumerate(
            zip(rows.sequence_ids.tolist(), rows.positions.tolist(), rows.anchor_token_ids.tolist(), strict=True)
        ):
            for place in range(self._draft_length):
                index = position + 1 + place
                token_id = self._model.say(self._model.after(token_id))
                drafts[row, place] = 3 if self.is_wrong(sequence, index) else token_id
                confidences[row, place] = (7 * index % 11 + 1) / 12
        return drafts, confidences


class ScriptedBudget:
    """Verifies two of three drafts in all, the likeliest first, once there is a step-time curve."""

    def __init__(self) -> None:
        self._has_curve = False

    def set_step_time_curve(self, points: Sequence[tuple[int, float]]) -> None:
        self._has_curve = True

    def record_step_time(self, num_rows: int, graph_size: int, forward_ms: float, sampler_ms: float) -> None:
        """Learns nothing."""

    def verify_lengths(
        self, budget_survival: Sequence[NDArray[np.float32]], split_survival: Sequence[NDArray[np.float32]]
    ) -> NDArray[np.int32]:
        lengths = np.ones(len(split_survival), np.int32)
        drafts = [(-value, row) for row, values in enumerate(split_survival) for value in values.tolist()]
        for _, row in sorted(drafts)[: len(drafts) if not self._has_curve else 2 * len(drafts) // 3]:
            lengths[row] += 1
        return lengths
