"""Trains the byte-level BPE of the small model."""

from __future__ import annotations

import random
from collections.abc import Sequence
from pathlib import Path

from tokenizers import Regex, Tokenizer, decoders, models, pre_tokenizers, trainers
from tools.train.corpus.documents import Document

from thalweg.interfaces import ConfigError
from thalweg.model.engram_vocabulary import PAD_TOKEN

SIZE = 4096
SPECIAL = (
    "<\uff5cbegin\u2581of\u2581sentence\uff5c>",
    "<\uff5cend\u2581of\u2581sentence\uff5c>",
    PAD_TOKEN,
    "<\uff5cnoise\uff5c>",
    "<\uff5cimage\uff5c>",
)
"""In the order of their ids, from 0."""
BOS, EOS = 0, 1
SAMPLE_BYTES = 25_000_000
SPLIT = (
    r"[^\r\n\p{L}\p{N}]?\p{L}+"  # a word with the space or sign before it
    r"|\p{N}"  # one digit at a time
    r"| ?[^\s\p{L}\p{N}]+[\r\n]*"  # signs, with the line ends after them
    r"|\s*[\r\n]+"  # blank lines
    r"|\s+(?!\S)|\s+"  # indentation, less the space that goes with the word after it
)


def train(documents: Sequence[Document], seed: int, size: int = SIZE) -> Tokenizer:
    """A tokenizer of `size` entries, the special ones included, from a random sample of the documents.

    Raises ConfigError when the text has too few different words for that many.
    """
    tokenizer = Tokenizer(models.BPE())
    split = pre_tokenizers.Split(Regex(SPLIT), behavior="isolated")
    bytes_alone = pre_tokenizers.ByteLevel(add_prefix_space=False, use_regex=False)
    tokenizer.pre_tokenizer = pre_tokenizers.Sequence([split, bytes_alone])
    tokenizer.decoder = decoders.ByteLevel()
    trainer = trainers.BpeTrainer(
        vocab_size=size,
        special_tokens=list(SPECIAL),
        initial_alphabet=pre_tokenizers.ByteLevel.alphabet(),
        show_progress=False,
    )
    tokenizer.train_from_iterator(sample(documents, seed), trainer)
    if tokenizer.get_vocab_size() != size:
        raise ConfigError(f"the text gives {tokenizer.get_vocab_size()} entries, {size} are asked for: too little text")
    return tokenizer


def read(path: Path) -> Tokenizer:
    """Read tokenizer.json. Raises ConfigError when it was not trained yet."""
    if not path.is_file():
        raise ConfigError(f"{path}: does not exist; run the stage `tokenizer` first")
    return Tokenizer.from_file(str(path))


def sample(documents: Sequence[Document], seed: int, num_bytes: int = SAMPLE_BYTES) -> list[str]:
    """Texts of random documents, `num_bytes` in all or one document more."""
    chosen: list[str] = []
    for document in random.Random(seed).sample(documents, len(documents)):
        if num_bytes <= 0:
            break
        chosen.append(document.text)
        num_bytes -= len(document.text.encode())
    return chosen
