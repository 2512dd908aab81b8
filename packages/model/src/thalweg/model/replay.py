"""Bounded replay of the consumer layers: in a prefill they run over the last rows of each prompt only.

Layers before the first consumer complete everything that is kept of a token but window keys: the first consumer's
stream is a projection of the rows that enter its attention. So the rest may run for as many tokens as windows and
rollbacks can reach, with windows that begin where the kept range does. An approximation; bounded_replay.md 3 and 4.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass, replace
from typing import Generic, TypeVar

import torch

from thalweg.interfaces import ConfigError
from thalweg.model.config import ModelConfig
from thalweg.model.metadata import ConsumerMetadata, ForwardBatch, PrefillMetadata

Memory = TypeVar("Memory")


@dataclass(frozen=True, slots=True)
class ConsumerPass(Generic[Memory]):
    """What the consumer layers of a pass run over; Q rows."""

    rows: torch.Tensor | None
    """int64 [Q] which rows of the pass they are, in order; None = all."""
    batch: ForwardBatch
    memory: Memory

    def kept(self, rows: torch.Tensor) -> torch.Tensor:
        """Those [Q, ...] of the pass's rows [T, ...]."""
        return rows if self.rows is None else rows[self.rows]


def consumer_pass(
    config: ModelConfig,
    metadata: PrefillMetadata,
    consumers: ConsumerMetadata,
    batch: ForwardBatch,
    make_memory: Callable[[PrefillMetadata, torch.Tensor], Memory],
) -> ConsumerPass[Memory]:
    """What the consumer layers of a prefill step run over; metadata and batch are the whole step's.

    make_memory: the memory of a step with this metadata and positions int64 [Q]. Raises ConfigError for a config that
    bounded replay cannot serve.
    """
    check_replay(config)
    of_rows = replace(
        metadata,
        query_offsets=consumers.query_offsets,
        window_store_slots=consumers.window_store_slots,
        window_pivots=consumers.window_pivots,
        entry_begin=consumers.entry_begin,
        entry_end=consumers.entry_end,
    )
    memory = make_memory(of_rows, consumers.positions)
    if consumers.query_rows is None:
        return ConsumerPass(None, batch, memory)
    rows = consumers.query_rows.long()
    kept = ForwardBatch(
        batch.token_ids[rows],
        consumers.positions,
        batch.ngram_ids[rows],
        image_mask=None if batch.image_mask is None else batch.image_mask[rows],
        valid_mask=None if batch.valid_mask is None else batch.valid_mask[rows],
    )
    return ConsumerPass(rows, kept, memory)


def check_replay(config: ModelConfig) -> None:
    """Raise ConfigError, naming the field, where consumer layers cannot run over fewer rows than the others."""
    first, count = config.topology.num_producer_layers, config.num_hidden_layers
    if not 0 < first < count:
        raise ConfigError(
            f"compress_ratios is {list(config.compress_ratios[:count])}; bounded replay needs layers of ratio 1 "
            "behind others"
        )
    for name in ("kv_source_layer_ids", "index_k_source_layer_ids"):
        late = [layer for layer in getattr(config, name) if layer > first]
        if late:  # streams need every row, which only the layers up to the first consumer see
            raise ConfigError(f"{name} has {late}; bounded replay needs none above {first}")
    late = [layer for layer in config.engram_layer_ids if layer >= first]
    if late:
        raise ConfigError(f"engram_layer_ids has {late}; bounded replay needs all of them below {first}")
    targets = config.dspark_target_layer_ids if config.num_draft_layers else ()
    if len({layer < first for layer in targets}) > 1:
        raise ConfigError(f"dspark_target_layer_ids is {list(targets)}; bounded replay needs all below {first} or none")
