"""What attention remembers: the contract between the layers and whatever keeps keys, and its whole-sequence form."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Protocol

import torch

from thalweg.interfaces import RequestError
from thalweg.model.config import ModelConfig
from thalweg.model.numerics import Numerics


class AttentionMemory(Protocol):
    """Keys of all layers for the rows of one forward pass.

    T rows of the pass, W window size, D head dim, d index head dim, k selected entries per row, E entries of one stream
    that the pass completes. A memory quantises what it is given and returns values as a later pass would read them.
    """

    def window(self, layer: int, rows: torch.Tensor) -> tuple[torch.Tensor, torch.Tensor]:
        """Remember the window keys [T, D] of a layer; the keys [S, D] and int64 [T, W] indices of each row's window.

        Indices run from the oldest position on, without gaps, then -1. Where a layer reads nothing but windows, s
        consecutive rows may share a list: [T / s, W].
        """

    def entry_positions(self, ratio: int) -> torch.Tensor:
        """int64 [E]: first position of each entry that streams of this ratio gain; 0 for a filler row."""

    def pool(self, layer: int, score: torch.Tensor, latent: torch.Tensor) -> torch.Tensor:
        """Remember scores and latents [T, D] of a pooling layer; the pooled rows [E, D] of completed groups."""

    def append_main(self, layer: int, rows: torch.Tensor) -> None:
        """Add entries [E, D] to the stream of a KV-source layer."""

    def append_index_keys(self, layer: int, rows: torch.Tensor) -> None:
        """Add index keys [E, d] of an index-key-source layer."""

    def index_keys(self, layer: int) -> tuple[torch.Tensor, torch.Tensor, torch.Tensor]:
        """Keys [M, d] of an index-key-source layer, and the range int64 begin [T], end [T] that each row may see."""

    def selected_main(self, layer: int, selection: torch.Tensor) -> tuple[torch.Tensor, torch.Tensor]:
        """Entries [S, D] of a KV-source layer, and int64 [T, k] indices of the selected ones; -1 stays -1."""


class SequenceMemory:
    """Whole sequences in plain tensors: nothing outlives the pass, and gradients flow in `plain` mode."""

    def __init__(
        self, config: ModelConfig, lengths: Sequence[int], numerics: Numerics, device: torch.device | str = "cpu"
    ) -> None:
        """lengths: number of tokens of each sequence; the pass holds all of them from position 0, one after the other.

        Raises RequestError for an empty sequence, or none at all.
        """
        if not lengths:
            raise RequestError("there are no sequences; at least one is needed")
        for index, length in enumerate(lengths):
            if length < 1:
                raise RequestError(f"sequence {index} has {length} tokens; at least one is needed")
        self._config = config
        self._numerics = numerics
        counts = torch.tensor(list(lengths), dtype=torch.int64, device=device)
        starts = counts.cumsum(0) - counts
        self.positions = torch.cat([torch.arange(length, device=device) for length in lengths])
        """int64 [T]"""
        self._row_start = torch.repeat_interleave(starts, counts)
        self._window_indices = self._windows(config.sliding_window)
        self._streams = {ratio: _Stream(counts, starts, ratio) for ratio in set(config.compress_ratios) if ratio}
        self._main: dict[int, torch.Tensor] = {}
        self._index_keys: dict[int, torch.Tensor] = {}

    def window(self, layer: int, rows: torch.Tensor) -> tuple[torch.Tensor, torch.Tensor]:
        return self._numerics.mxfp8(rows), self._window_indices

    def entry_positions(self, ratio: int) -> torch.Tensor:
        return self._streams[ratio].positions

    def pool(self, layer: int, score: torch.Tensor, latent: torch.Tensor) -> torch.Tensor:
        groups = self._stream(layer).group_rows
        pooled: torch.Tensor = self._numerics.ops.pool_groups(score[groups], latent[groups])
        return pooled

    def append_main(self, layer: int, rows: torch.Tensor) -> None:
        n = self._numerics
        self._main[layer] = n.fp4_main(rows) if self._config.use_fp4_sparse_kv else n.mxfp8(rows)

    def append_index_keys(self, layer: int, rows: torch.Tensor) -> None:
        self._index_keys[layer] = self._numerics.mxfp4(rows)

    def index_keys(self, layer: int) -> tuple[torch.Tensor, torch.Tensor, torch.Tensor]:
        begin, end = self._ranges(layer)
        return self._index_keys[layer], begin, end

    def selected_main(self, layer: int, selection: torch.Tensor) -> tuple[torch.Tensor, torch.Tensor]:
        begin, _ = self._ranges(layer)
        return self._main[layer], torch.where(selection >= 0, selection.long() + begin[:, None], -1)

    def _stream(self, layer: int) -> _Stream:
        return self._streams[self._config.compress_ratios[layer]]

    def _ranges(self, layer: int) -> tuple[torch.Tensor, torch.Tensor]:
        stream = self._stream(layer)
        return stream.row_begin, stream.row_begin + (self.positions + 1) // stream.ratio

    def _windows(self, width: int) -> torch.Tensor:
        count = (self.positions + 1).clamp(max=width)
        column = torch.arange(width, device=self.positions.device)
        oldest = self._row_start + self.positions + 1 - count
        return torch.where(column < count[:, None], oldest[:, None] + column, -1)


class _Stream:
    """Where the entries of one compress ratio lie when sequences are whole; a trailing open group has no entry."""

    def __init__(self, counts: torch.Tensor, starts: torch.Tensor, ratio: int) -> None:
        entries = counts // ratio
        first = entries.cumsum(0) - entries
        number = torch.arange(int(entries.sum()), device=counts.device) - torch.repeat_interleave(first, entries)
        self.ratio = ratio
        self.positions = number * ratio
        self.row_begin = torch.repeat_interleave(first, counts)
        rows = torch.repeat_interleave(starts, entries) + self.positions
        self.group_rows = rows[:, None] + torch.arange(ratio, device=counts.device)
