"""The frozen backbone: what it makes of whole texts, for a drafter to read and to agree with."""

from __future__ import annotations

import torch
from tools.train.backbone.experts import DenseExperts
from tools.train.drafter.blocks import Texts
from tools.train.drafter.reading import ReadingOps
from tools.train.evaluate.models import Subject
from torch import Tensor

from thalweg.model import (
    AttentionMemory,
    EngramVocabulary,
    ForwardBatch,
    Model,
    Numerics,
    SequenceMemory,
    TargetFeatures,
)
from thalweg.model.weights import Weights


class Target:
    """The backbone of a checkpoint in plain mode, for texts of one length at a time."""

    def __init__(self, subject: Subject, layer_ids: tuple[int, ...]) -> None:
        """layer_ids: whose attention inputs are the features."""
        self._ops = ReadingOps()
        numerics = Numerics("plain", "float32", self._ops)
        self.config, self.device = subject.config, subject.device
        with self.device:  # the rotary frequencies are made when the model is
            weights = Weights(subject.source, numerics)
            self.model = Model(subject.config, weights, numerics, subject.vocabulary, DenseExperts)
        self._layer_ids = layer_ids
        self._memories: dict[torch.Size, SequenceMemory] = {}
        vocabulary = subject.vocabulary
        self._grams = None if vocabulary is None else Grams(vocabulary, self.config.engram_max_ngram_size, self.device)

    @torch.no_grad()
    def read(self, tokens: Tensor) -> Texts:
        """Features and final rows of whole texts, int64 [n, L] on the device, each from position 0."""
        count, length = tokens.shape
        if tokens.shape not in self._memories:
            numerics = self.model.numerics
            self._memories[tokens.shape] = SequenceMemory(self.config, [length] * count, numerics, self.device)
        memory = self._memories[tokens.shape]
        features = TargetFeatures(self._layer_ids)
        grams = self.grams(tokens, torch.arange(length, device=self.device))
        hidden = self.forward(tokens, memory.positions, grams.flatten(0, 1), memory, features)
        return Texts(tokens.flatten(), memory.positions, features.joined(), hidden)

    def forward(
        self,
        tokens: Tensor,
        positions: Tensor,
        grams: Tensor,
        memory: AttentionMemory,
        features: TargetFeatures | None = None,
    ) -> Tensor:
        """Final rows [n * L, h] of rows of texts, int64 [n, L], at positions int64 [n * L]."""
        self._ops.num_texts = len(tokens)
        batch = ForwardBatch(tokens.flatten(), positions, grams)
        return self.model.forward_rows(self.model.token_rows(batch.token_ids), batch, memory, features=features)

    def grams(self, texts: Tensor, positions: Tensor) -> Tensor:
        """Engram's windows int64 [n, P, N] of texts int64 [n, L] at positions int64 [P]; N = 0 without Engram."""
        return texts.new_empty(len(texts), len(positions), 0) if self._grams is None else self._grams(texts, positions)


class Grams:
    """Engram's windows on a device, for texts without images."""

    def __init__(self, vocabulary: EngramVocabulary, size: int, device: torch.device) -> None:
        self._compressed_ids = torch.from_numpy(vocabulary.compressed_ids).to(device)
        self._pad_id = vocabulary.pad_id
        self._ages = torch.arange(size, device=device)

    def __call__(self, texts: Tensor, positions: Tensor) -> Tensor:
        """int64 [n, P, N]: column g is the compressed id at position p - g, the pad before the text."""
        places = positions[:, None] - self._ages
        ids = self._compressed_ids[texts[:, places.clamp(min=0)]]
        return torch.where(places < 0, self._pad_id, ids)
