"""Training windows out of one packed stream of documents, each opened by BOS."""

from __future__ import annotations

import numpy as np
import torch
from numpy.typing import NDArray
from torch import Tensor

from thalweg.interfaces import ConfigError


class TokenWindows:
    """Draws windows; which ones depends on seed and step alone.

    Some begin where a document does, so that position 0 can mean a beginning; more of them would repeat the few
    thousand beginnings too often. The others begin anywhere in the stream, and go on into the next document, as those
    that training is measured on do; long ones lie in one document as a whole, to learn what is far away.
    """

    BEGINNINGS = 1 / 8
    """Share of the windows that begin with a document."""
    LONG = 2048
    """Tokens from which on a window lies in one document, where any is long enough."""

    def __init__(self, stream: NDArray[np.uint16], seed: int, device: torch.device, bos_id: int = 0) -> None:
        """stream: uint16 [N]. Raises ConfigError when it holds no BOS."""
        self._starts = np.flatnonzero(stream == bos_id)
        if len(self._starts) == 0:
            raise ConfigError(f"the stream of {len(stream)} tokens holds no BOS, id {bos_id}; each document needs one")
        self._lengths = np.diff(np.append(self._starts, len(stream)))
        self._stream = torch.from_numpy(stream.astype(np.int32)).to(device)
        self._seed = seed
        self._bos_id = bos_id

    def draw(self, batch: int, length: int, step: int) -> Tensor:
        """int64 [batch, length + 1], the first token BOS. Raises ConfigError when the stream is shorter than that."""
        if length >= len(self._stream):
            raise ConfigError(f"length is {length}; the stream has {len(self._stream)} tokens, one more is needed")
        random = np.random.default_rng([self._seed, step])
        count = int(batch * self.BEGINNINGS)
        firsts = np.concatenate(
            [self._beginnings(random, count, length), self._elsewhere(random, batch - count, length)]
        )
        firsts = np.minimum(firsts, len(self._stream) - length - 1)
        device = self._stream.device
        places = torch.from_numpy(firsts).to(device).unsqueeze(1) + torch.arange(length + 1, device=device)
        windows = self._stream[places].long()
        windows[:, 0] = self._bos_id
        return windows

    def _beginnings(self, random: np.random.Generator, count: int, length: int) -> NDArray[np.int64]:
        """Where documents begin that fill at least half of a window; any document if there is none."""
        long = self._starts[self._lengths >= length // 2]
        return random.choice(long if len(long) else self._starts, count)

    def _elsewhere(self, random: np.random.Generator, count: int, length: int) -> NDArray[np.int64]:
        """Other places, all possible ones equally likely."""
        room = np.maximum(self._lengths - length, 0)
        if length < self.LONG or not room.any():
            return random.integers(0, len(self._stream) - length, count)
        ends = np.cumsum(room)
        places = random.integers(0, ends[-1], count)
        document = np.searchsorted(ends, places, side="right")
        before = np.where(document > 0, ends[document - 1], 0)
        first: NDArray[np.int64] = self._starts[document] + places - before
        return first
