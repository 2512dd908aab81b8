"""Held-out text that figures are about: fixed windows, and how many bytes of text they stand for."""

from __future__ import annotations

from dataclasses import dataclass
from pathlib import Path

import numpy as np
import torch
from tokenizers import Tokenizer
from tools.train.corpus.pack import token_bytes
from torch import Tensor

from thalweg.interfaces import ConfigError


@dataclass(frozen=True, slots=True)
class Windows:
    """A named set of windows of one length; each begins with a token that is given, not predicted."""

    name: str
    tokens: Tensor
    """int64 [n, L + 1] on the host."""
    num_bytes: int
    """Bytes of the text of all predicted tokens."""

    @classmethod
    def read(cls, data: Path, checkpoint: Path, limit: int | None = None) -> Windows:
        """The first `limit` windows, or all, of `evaluation.npy`, uint16 [n, L + 1].

        Raises ConfigError for a file that is none, a limit beyond it, and tokens that mean something else to the
        checkpoint.
        """
        file, tokenizer = data / "evaluation.npy", read_tokenizer(checkpoint)
        if read_tokenizer(data).to_str() != tokenizer.to_str():
            raise ConfigError(f"{data} was encoded with another tokenizer than {checkpoint} has")
        stored = np.load(file)
        if stored.ndim != 2 or stored.dtype != np.uint16 or stored.shape[1] < 2:
            raise ConfigError(f"{file} holds {stored.dtype} {list(stored.shape)}; uint16 [n, L + 1] is needed")
        if limit is not None and not 1 <= limit <= len(stored):
            raise ConfigError(f"--windows is {limit}; {file} has 1 to {len(stored)}")
        taken = stored[:limit].astype(np.int64)
        return cls(file.stem, torch.from_numpy(taken), int(token_bytes(tokenizer)[taken[:, 1:]].sum()))

    @property
    def num_tokens(self) -> int:
        """Predicted tokens."""
        return self.tokens.shape[0] * (self.tokens.shape[1] - 1)

    @property
    def description(self) -> str:
        """What stands beside every figure."""
        count, length = self.tokens.shape[0], self.tokens.shape[1] - 1
        return f"{self.name}: {count} windows of {length}, {self.num_tokens:,} tokens, {self.num_bytes:,} bytes"


def read_tokenizer(folder: Path) -> Tokenizer:
    """The tokenizer of a checkpoint or of a folder of data. Raises ConfigError when there is none."""
    file = folder / "tokenizer.json"
    if not file.is_file():
        raise ConfigError(f"{file} does not exist; checkpoint and data need it")
    return Tokenizer.from_file(str(file))
