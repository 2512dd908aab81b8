"""What one forward pass needs to know about its rows: tokens, positions, and where the cache keeps what.

The engine builds these from a step plan (engine.inputs); the model only reads them. Letters: T query tokens, N
sequences, r compress ratio, E_r compressed rows of the step (at least one per sequence), W window size. Every
dictionary is keyed by compress ratio. Integer tensors are int32 unless said otherwise.
"""

from __future__ import annotations

from dataclasses import dataclass

import torch


@dataclass(frozen=True, slots=True)
class ForwardBatch:
    """The rows of one forward pass."""

    token_ids: torch.Tensor
    """int64 [T]"""
    positions: torch.Tensor
    """int64 [T] absolute positions from 0."""
    ngram_ids: torch.Tensor
    """int64 [T, max_ngram_size] compressed ids, newest first: column g is position p - g, the pad where blocked."""
    image_mask: torch.Tensor | None = None
    """bool [T] rows that belong to an image span; None = none."""
    image_embeddings: torch.Tensor | None = None
    """[number of image rows, hidden] embeddings that replace the token rows of `image_mask`."""
    valid_mask: torch.Tensor | None = None
    """bool [T] false on placeholder rows; None = all valid."""


@dataclass(frozen=True, slots=True)
class PrefillMetadata:
    """Where the chunks of a prefill step read and write the cache."""

    query_offsets: torch.Tensor
    """[N+1] chunk boundaries in the T rows."""
    state_slots: torch.Tensor
    """[N]"""
    window_store_slots: torch.Tensor
    """[T] flat ring slot (state slot * ring length + position mod ring length), -1 = do not store."""
    window_segments: torch.Tensor
    """[m, 4] load plan (source slot or -1, begin, end, destination) of the history rows: W per sequence."""
    window_pivots: torch.Tensor
    """[T, 4] (start1, len1, start2, len2): history rows, then chunk rows, of the gathered window keys."""
    compressed_offsets: dict[int, torch.Tensor]
    """[N+1] boundaries of each sequence's compressed rows of this step."""
    compressed_positions: dict[int, torch.Tensor]
    """[E_r] first position of each new entry; 0 for a filler row."""
    compressed_store_slots: dict[int, torch.Tensor]
    """[E_r] flat paged slot of each new entry; -1 for a filler row."""
    compressed_segments: dict[int, torch.Tensor]
    """[m, 4] load plan of all visible entries, sequence after sequence."""
    num_compressed_rows: dict[int, int]
    """Rows that the load plan of the ratio yields."""
    entry_begin: dict[int, torch.Tensor]
    """[T] first gathered row of the query's sequence."""
    entry_end: dict[int, torch.Tensor]
    """[T] one past the last gathered row the query may see."""


@dataclass(frozen=True, slots=True)
class ConsumerMetadata:
    """Rows of a prefill step that the consumer layers run over under bounded replay, bounded_replay.md 4.

    Q rows, at least one of each sequence. What is not here is as in the step's PrefillMetadata.
    """

    query_rows: torch.Tensor | None
    """[Q] which of the T rows; None = all of them (mode `mask`)."""
    query_offsets: torch.Tensor
    """[N+1] boundaries of each sequence's rows."""
    positions: torch.Tensor
    """int64 [Q]"""
    window_store_slots: torch.Tensor
    """[Q] flat ring slot, -1 = do not store: rows before the kept range, in mode `compact`."""
    window_pivots: torch.Tensor
    """[Q, 4] as PrefillMetadata's, over the window keys of these rows; nothing before the kept range is visible."""
    entry_begin: dict[int, torch.Tensor]
    """[Q]"""
    entry_end: dict[int, torch.Tensor]
    """[Q]"""


@dataclass(frozen=True, slots=True)
class DecodeMetadata:
    """Where the rows of a decode step read and write the cache; one entry per query token."""

    query_indices: torch.Tensor
    """[T] sequence row of each query, `thalweg.kernels.PLACEHOLDER_QUERY` for padding."""
    state_slots: torch.Tensor
    """[T]"""
    window_store_slots: torch.Tensor
    """[T]"""
    window_reads: torch.Tensor
    """[T, 2] (flat ring slot of the oldest visible position, number of visible positions)."""
    context_lengths: torch.Tensor
    """[T] position + 1."""
    block_tables: torch.Tensor
    """[T, table width]; cells beyond the sequence's own blocks are undefined."""
    compressed_positions: dict[int, torch.Tensor]
    """[T] first position of the entry this row completes, else 0."""
    compressed_store_slots: dict[int, torch.Tensor]
    """[T] flat paged slot of that entry, else -1."""
    visible_entries: dict[int, torch.Tensor]
    """[T] number of entries the query may see."""
