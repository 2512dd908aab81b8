"""The frozen backbone: what it makes of whole texts, for a drafter to read and to agree with."""

from __future__ import annotations

import torch
from tools.train.backbone import streams
from tools.train.drafter.blocks import Texts
from tools.train.drafter.lockstep import lockstep_scores
from tools.train.evaluate.models import Subject
from tools.train.evaluate.ops import Op
from torch import Tensor

from thalweg.model import EngramVocabulary, ForwardBatch, Model, SequenceMemory, TargetFeatures

_FEWER_KERNELS: dict[str, Op] = {
    "hc_mixes": streams.mixes,
    "hc_coefficients": streams.coefficients,
    "hc_collapse": streams.collapse,
    "hc_expand": streams.expand,
}
"""Ops that are many small kernels in the reference."""


class Target:
    """A backbone on one device; texts of one length at a time."""

    @classmethod
    def reader(cls, subject: Subject, layer_ids: tuple[int, ...], mode: str = "plain") -> Target:
        """The backbone of a checkpoint, for whole texts. layer_ids: whose attention inputs are the features."""
        return cls(subject.model(mode, _FEWER_KERNELS), layer_ids, subject.device)

    @classmethod
    def writer(cls, subject: Subject, mode: str = "plain") -> Target:
        """The same for texts that grow token by token in a `LockstepMemory`."""
        return cls(subject.model(mode, {**_FEWER_KERNELS, "indexer_scores": lockstep_scores}), (), subject.device)

    def __init__(self, model: Model, layer_ids: tuple[int, ...], device: torch.device) -> None:
        self.model = model
        self.device = device
        self._layer_ids = layer_ids
        self._windows = (
            None
            if model.vocabulary is None
            else NgramWindows(model.vocabulary, model.config.engram_max_ngram_size, device)
        )

    @torch.no_grad()
    def read(self, tokens: Tensor) -> Texts:
        """Features and final rows of whole texts, int64 [n, L] on the device, each from position 0."""
        model = self.model
        memory = SequenceMemory(model.config, [tokens.shape[1]] * len(tokens), model.numerics, self.device)
        features = TargetFeatures(self._layer_ids)
        batch = ForwardBatch(tokens.flatten(), memory.positions, self.ngram_ids(tokens).flatten(0, 1))
        hidden = model.forward(batch, memory, features=features)
        return Texts(batch.token_ids, memory.positions, features.joined(), hidden)

    def ngram_ids(self, tokens: Tensor) -> Tensor:
        """int64 [n, L, N] of texts int64 [n, L] that begin at position 0; N = 0 without Engram."""
        return tokens.new_empty(*tokens.shape, 0) if self._windows is None else self._windows(tokens)


class NgramWindows:
    """Engram's windows on a device, for texts without images."""

    def __init__(self, vocabulary: EngramVocabulary, size: int, device: torch.device) -> None:
        self._compressed_ids = torch.from_numpy(vocabulary.compressed_ids).to(device)
        self._pad_id = vocabulary.pad_id
        self._size = size

    def __call__(self, tokens: Tensor) -> Tensor:
        """int64 [n, L, N]: column g is position p - g, the pad before the text."""
        ids = torch.nn.functional.pad(self._compressed_ids[tokens], (self._size - 1, 0), value=self._pad_id)
        return ids.unfold(1, self._size, 1).flip(-1)
