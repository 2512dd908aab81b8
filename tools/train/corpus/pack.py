"""Packs documents into streams of token ids, and cuts the fixed evaluation windows."""

from __future__ import annotations

import random
from collections.abc import Sequence
from dataclasses import dataclass

import numpy as np
from numpy.typing import NDArray
from tokenizers import Tokenizer
from tools.train.corpus.documents import Document
from tools.train.corpus.tokenizer import BOS, EOS

from thalweg.interfaces import ConfigError

WINDOW = 1024
"""Predicted tokens of an evaluation window."""
NUM_WINDOWS = 384
_BATCH = 256


@dataclass(frozen=True, slots=True, eq=False)
class Stream:
    """Documents one after the other, each as BOS, text, EOS."""

    tokens: NDArray[np.uint16]
    """[n]"""
    documents: list[Document]
    """In their order in the stream."""
    starts: NDArray[np.int64]
    """[documents + 1] where each begins; the last is n."""


def pack(documents: Sequence[Document], tokenizer: Tokenizer, seed: int) -> Stream:
    """Encode the documents in random order, so that any stretch of the stream is a fair sample."""
    shuffled = random.Random(seed).sample(documents, len(documents))
    pieces: list[NDArray[np.uint16]] = []
    for start in range(0, len(shuffled), _BATCH):
        texts = [document.text for document in shuffled[start : start + _BATCH]]
        for encoding in tokenizer.encode_batch_fast(texts, add_special_tokens=False):  # fast: without offsets
            pieces.append(np.array([BOS, *encoding.ids, EOS], dtype=np.uint16))
    return Stream(
        tokens=np.concatenate(pieces),
        documents=shuffled,
        starts=np.cumsum([0, *map(len, pieces)], dtype=np.int64),
    )


def boundaries(stream: Stream) -> list[dict[str, str | int]]:
    """Source, path, first token, token after the last, and bytes of each document."""
    return [
        {
            "source": document.source,
            "path": document.path,
            "start": int(start),
            "end": int(end),
            "bytes": document.num_bytes,
        }
        for document, start, end in zip(stream.documents, stream.starts[:-1], stream.starts[1:], strict=True)
    ]


def token_bytes(tokenizer: Tokenizer) -> NDArray[np.int64]:
    """[V] bytes of text that each token stands for; special tokens stand for none."""
    vocabulary = tokenizer.get_vocab()
    special = tokenizer.get_added_tokens_decoder()
    sizes = np.zeros(len(vocabulary), dtype=np.int64)
    for entry, token in vocabulary.items():
        sizes[token] = 0 if token in special else len(entry)  # byte-level: one character stands for one byte
    return sizes


def evaluation_windows(stream: NDArray[np.uint16], seed: int, count: int = NUM_WINDOWS) -> NDArray[np.uint16]:
    """[count, WINDOW + 1]: stretches that predict no token twice, their first token replaced by BOS.

    Raises ConfigError when the stream is too short for that many.
    """
    available = (len(stream) - 1) // WINDOW
    if available < count:
        raise ConfigError(f"{len(stream)} held-out tokens give {available} windows; {count} are needed: hold out more")
    chosen = np.sort(np.random.default_rng(seed).permutation(available)[:count])
    windows: NDArray[np.uint16] = stream[chosen[:, None] * WINDOW + np.arange(WINDOW + 1)]
    windows[:, 0] = BOS
    return windows
