"""Inputs of steps at real width: a cache full of random records, and sequences of any context that live in it."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any

import numpy as np
import torch

from thalweg.cache import (
    CacheGeometry,
    CachePools,
    MetadataShape,
    build_decode_metadata,
    build_prefill_metadata,
)
from thalweg.kernels import RecordFormat
from thalweg.model import DecodeMetadata, ForwardBatch, ModelConfig, PrefillMetadata

TOKENS_PER_BLOCK = 128
NOT_NAN = 0xBF
"""Takes the upper bit of an e4m3 exponent away: what is left is below 2 and never NaN."""


@dataclass(frozen=True)
class Sequences:
    """As many sequences as there are state slots but one, each with blocks for the longest context."""

    pools: CachePools
    shape: MetadataShape
    block_ids: np.ndarray[Any, Any]
    """[sequences, blocks of each], in no order."""

    @classmethod
    def random(
        cls, config: ModelConfig, count: int, max_context: int, device: torch.device, seed: int = 0
    ) -> Sequences:
        """Pools full of random records."""
        geometry = geometry_of(config)
        blocks_each = -(-max_context // TOKENS_PER_BLOCK)
        pools = CachePools(geometry, 1 + count * blocks_each, 1 + count, device)
        generator = torch.Generator(device).manual_seed(seed)
        _fill(pools, config, generator)
        order = 1 + np.random.default_rng(seed).permutation(count * blocks_each)
        return cls(pools, MetadataShape.of(geometry), order.reshape(count, blocks_each))

    def decode(
        self, batch: int, context: int, config: ModelConfig, seed: int = 0
    ) -> tuple[ForwardBatch, DecodeMetadata]:
        """One new token in each of `batch` sequences, whose context it ends."""
        table = self.block_ids[:batch]
        arrays = build_decode_metadata(
            self.shape,
            np.ones(batch, np.int64),
            np.full(batch, context),
            1 + np.arange(batch),
            *self._tables(table, context),
            table_width=-(-context // TOKENS_PER_BLOCK),
        )
        device = self.pools.blocks.device
        metadata = DecodeMetadata(**moved(arrays.metadata(), device))
        return _batch(arrays.positions, config, device, seed), metadata

    def prefill(
        self, first: int, count: int, config: ModelConfig, seed: int = 0
    ) -> tuple[ForwardBatch, PrefillMetadata]:
        """A chunk of `count` tokens of one sequence, behind `first` that the cache has."""
        arrays = build_prefill_metadata(
            self.shape, [count], [first + count], [1], *self._tables(self.block_ids[:1], first + count)
        )
        device = self.pools.blocks.device
        metadata = PrefillMetadata(**moved(arrays.metadata(), device))
        return _batch(arrays.positions, config, device, seed), metadata

    def _tables(self, table: np.ndarray[Any, Any], context: int) -> tuple[np.ndarray[Any, Any], np.ndarray[Any, Any]]:
        """Offsets and ids of the blocks that so long a context fills."""
        own = table[:, : -(-context // TOKENS_PER_BLOCK)]
        return np.arange(own.shape[0] + 1) * own.shape[1], own.reshape(-1)


def geometry_of(config: ModelConfig) -> CacheGeometry:
    """The cache of a model, without a drafter."""
    return CacheGeometry(
        num_layers=config.num_hidden_layers,
        compress_ratios=config.compress_ratios[: config.num_hidden_layers],
        kv_source_layers=config.kv_source_layer_ids,
        index_key_source_layers=config.index_k_source_layer_ids,
        head_dim=config.head_dim,
        index_head_dim=config.index_head_dim,
        window_size=config.sliding_window,
        tokens_per_block=TOKENS_PER_BLOCK,
        fp4_main=config.use_fp4_sparse_kv,
        max_backtracking=6,
    )


def _fill(pools: CachePools, config: ModelConfig, generator: torch.Generator) -> None:
    """Random codes, and scales near 1, so that no value is NaN and no score leads by far."""

    def noise(tensor: torch.Tensor, low: int = 0, high: int = 256) -> None:
        tensor.copy_(
            torch.randint(low, high, tensor.shape, dtype=torch.uint8, generator=generator, device=tensor.device)
        )

    pools.blocks.random_(0, 256, generator=generator)
    for layer in range(config.num_hidden_layers):
        window = pools.window(layer)
        noise(window)
        window[..., : config.head_dim].bitwise_and_(NOT_NAN)
        noise(window[..., config.head_dim :], 126, 129)
    for layer in config.kv_source_layer_ids:
        data_bytes = pools.main_format.data_bytes(config.head_dim)
        low, high = (0x34, 0x3C) if pools.main_format is RecordFormat.FP4_MAIN else (126, 129)
        noise(pools.main(layer)[..., data_bytes:], low, high)
        if config.compress_ratios[layer] > 1:
            pools.compressor(layer).normal_(generator=generator)
    for layer in config.index_k_source_layer_ids:
        view = pools.index_keys(layer)
        pages, entries, _, record = view.shape
        data_bytes = entries * RecordFormat.MXFP4_INDEX.data_bytes(config.index_head_dim)
        start = view.storage_offset() + data_bytes
        noise(view.as_strided((pages, entries * record - data_bytes), (view.stride(0), 1), start), 125, 128)


def _batch(positions: np.ndarray[Any, Any], config: ModelConfig, device: torch.device, seed: int) -> ForwardBatch:
    generator = torch.Generator().manual_seed(seed)
    count = positions.shape[0]
    size = config.engram_compressed_vocab_size or config.vocab_size
    token_ids = torch.randint(5, config.vocab_size, (count,), generator=generator)
    ngram_ids = torch.randint(
        0, min(size, config.vocab_size), (count, config.engram_max_ngram_size), generator=generator
    )
    where = torch.from_numpy(positions.astype(np.int64))
    return ForwardBatch(token_ids.to(device), where.to(device), ngram_ids.to(device))


def moved(value: Any, device: torch.device) -> Any:
    """Arrays as tensors of the device, inside of dictionaries, too."""
    if isinstance(value, dict):
        return {key: moved(item, device) for key, item in value.items()}
    return torch.from_numpy(np.ascontiguousarray(value)).to(device) if isinstance(value, np.ndarray) else value
