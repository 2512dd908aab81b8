"""Prefill steps under bounded replay, their rows found one by one from the rule of bounded_replay.md 2."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

import torch
from model_testing.paged_cache import PagedCache, Running

from thalweg.model import ConsumerMetadata, PrefillMetadata, TargetFeatures

Chunks = Sequence[tuple[Running, int]]


@dataclass(frozen=True)
class Replay:
    """How consumer layers are run: mode `mask` or `compact`, and how many of a prompt's tokens are kept."""

    mode: str
    keep: int


def prefill(cache: PagedCache, chunks: Chunks, replay: Replay) -> torch.Tensor:
    """Run a step and keep the logits of the rows that consumer layers ran; returns the drafter's features [Q, F]."""
    batch, metadata = cache.prefill_inputs(chunks)
    kept = [kept_rows(running, count, replay) for running, count in chunks]
    consumers = consumer_metadata(cache, chunks, kept, metadata, replay)
    memory = cache.model.paged_memory(cache.views, metadata, batch.positions)
    config = cache.model.config
    features = TargetFeatures(config.dspark_target_layer_ids if config.num_draft_layers else ())
    inner = cache.model.consumer_pass(cache.views, metadata, consumers, batch)
    logits = cache.model.logits(cache.model.forward(batch, memory, None, features, inner))
    row = 0
    for (running, count), rows in zip(chunks, kept, strict=True):
        for j in rows:
            running.logits[running.done + j] = logits[row]
            row += 1
        running.done += count
    assert row == len(logits)
    return features.joined() if features.layer_ids else torch.empty(0)


def kept_rows(running: Running, count: int, replay: Replay) -> range:
    """Rows of a chunk that go on: those of the kept range or, where there are none, the last."""
    if replay.mode == "mask":
        return range(count)
    first = next((j for j in range(count) if running.done + j >= len(running.tokens) - replay.keep), count - 1)
    return range(first, count)


def consumer_metadata(
    cache: PagedCache, chunks: Chunks, kept: Sequence[range], metadata: PrefillMetadata, replay: Replay
) -> ConsumerMetadata:
    window, ring = cache.model.config.sliding_window, cache.views.layout.ring_length
    rows, offsets, positions, stores, pivots, first_row = [], [0], [], [], [], 0
    for index, ((running, count), chosen) in enumerate(zip(chunks, kept, strict=True)):
        begin, bound = running.done, len(running.tokens) - replay.keep
        base = window * len(chunks) + offsets[-1]
        for j in chosen:
            position = begin + j
            seen = [p for p in range(position + 1) if p > position - window and p >= bound]
            old = [p for p in seen if p < begin]
            new = [p for p in seen if p >= begin]
            first_new = base + new[0] - begin - chosen[0] if new else 0
            pivots.append((index * window + window - len(old), len(old), first_new, len(new)))
            is_stored = count - j <= ring and (position >= bound or replay.mode == "mask")
            stores.append(running.slot * ring + position % ring if is_stored else -1)
            rows.append(first_row + j)
            positions.append(position)
        offsets.append(len(rows))
        first_row += count
    chosen_rows = torch.tensor(rows)
    return ConsumerMetadata(
        query_rows=None if replay.mode == "mask" else chosen_rows.int(),
        query_offsets=torch.tensor(offsets, dtype=torch.int32),
        positions=torch.tensor(positions),
        window_store_slots=torch.tensor(stores, dtype=torch.int32),
        window_pivots=torch.tensor(pivots, dtype=torch.int32),
        entry_begin={ratio: value[chosen_rows] for ratio, value in metadata.entry_begin.items()},
        entry_end={ratio: value[chosen_rows] for ratio, value in metadata.entry_end.items()},
    )
