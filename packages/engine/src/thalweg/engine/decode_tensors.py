"""The tensors behind a decode step as one list, for buffers that graphs read."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from typing import Any

import torch

from thalweg.interfaces import InvariantError
from thalweg.model.metadata import DecodeMetadata, ForwardBatch

_BATCH = ("token_ids", "positions", "ngram_ids", "valid_mask")
_METADATA = (
    "query_indices",
    "state_slots",
    "window_store_slots",
    "window_reads",
    "context_lengths",
    "block_tables",
)
_BY_RATIO = ("compressed_positions", "compressed_store_slots", "visible_entries")


def tensors_of(batch: ForwardBatch, metadata: DecodeMetadata) -> list[torch.Tensor]:
    """Everything that says what the rows of a decode step are, [T, ...] each; ratios in ascending order.

    Raises InvariantError for a batch that does not say which of its rows are valid.
    """
    if batch.valid_mask is None:
        raise InvariantError("valid_mask is None; a decode step for a graph says which of its rows are valid")
    by_ratio = [getattr(metadata, name) for name in _BY_RATIO]
    return [
        *(getattr(batch, name) for name in _BATCH),
        *(getattr(metadata, name) for name in _METADATA),
        *(of_ratio[ratio] for of_ratio in by_ratio for ratio in sorted(of_ratio)),
    ]


def from_tensors(tensors: Sequence[torch.Tensor], ratios: Sequence[int]) -> tuple[ForwardBatch, DecodeMetadata]:
    """The step again. ratios: of the cache, in any order."""
    left: Iterator[torch.Tensor] = iter(tensors)
    batch: dict[str, Any] = {name: next(left) for name in _BATCH}
    metadata: dict[str, Any] = {name: next(left) for name in _METADATA}
    metadata |= {name: {ratio: next(left) for ratio in sorted(ratios)} for name in _BY_RATIO}
    return ForwardBatch(**batch), DecodeMetadata(**metadata)
