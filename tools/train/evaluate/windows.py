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
    def read(cls, file: Path, tokenizer_file: Path, limit: int | None = None) -> Windows:
        """The first `limit` windows, or all, of a file of uint16 [n, L + 1].

        Raises ConfigError for a file that is none, and for a limit beyond it.
        """
        stored = np.load(file)
        if stored.ndim != 2 or stored.dtype != np.uint16 or stored.shape[1] < 2:
            raise ConfigError(f"{file} holds {stored.dtype} {list(stored.shape)}; uint16 [n, L + 1] is needed")
        if limit is not None and not 1 <= limit <= len(stored):
            raise ConfigError(f"--windows is {limit}; {file} has 1 to {len(stored)}")
        taken = stored[:limit].astype(np.int64)
        sizes = token_bytes(Tokenizer.from_file(str(tokenizer_file)))
        return cls(file.stem, torch.from_numpy(taken), int(sizes[taken[:, 1:]].sum()))

    @property
    def num_tokens(self) -> int:
        """Predicted tokens."""
        return self.tokens.shape[0] * (self.tokens.shape[1] - 1)

    @property
    def description(self) -> str:
        """What stands beside every figure."""
        count, length = self.tokens.shape[0], self.tokens.shape[1] - 1
        return f"{self.name}: {count} windows of {length}, {self.num_tokens:,} tokens, {self.num_bytes:,} bytes"
