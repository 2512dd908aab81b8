"""Where every byte of the cache lies: blocks and state slots, computed from a geometry without allocating anything.

A block holds `tokens_per_block` tokens of every layer that owns compressed state: layers in increasing id, inside a
layer the index keys first, then the main KV. A state slot holds one sequence's window rings (first the layers that a
store keeps, then the others and the draft layers) and after them the compressor rings.
"""

from __future__ import annotations

import hashlib
import json
import math
from dataclasses import asdict, dataclass

from thalweg.cache.geometry import CacheGeometry
from thalweg.interfaces import CacheLayout, LayerSpan

PART_ALIGNMENT = 32
"""Every part of a block and every window ring is padded to this many bytes."""
BLOCK_ALIGNMENT = 128
"""The stride between blocks is a multiple of this and of the main record."""
LAYOUT_VERSION = 1
"""Part of the fingerprint: raised when bytes change their meaning while all facts stay the same."""


@dataclass(frozen=True, slots=True)
class BlockPart:
    """The bytes of one source layer inside a block."""

    layer: int
    entries: int
    """Records per block."""
    index_offset: int | None
    """First byte of the index keys; None = the layer owns none."""
    main_offset: int | None
    """First byte of the compressed KV; None = the layer owns none."""
    end: int
    """One past the last byte, padding included."""


def block_parts(geometry: CacheGeometry) -> tuple[BlockPart, ...]:
    """The parts of a block in order."""
    parts, offset = [], 0
    for layer in sorted({*geometry.kv_source_layers, *geometry.index_key_source_layers}):
        entries = geometry.tokens_per_block // geometry.compress_ratios[layer]
        index_offset = main_offset = None
        if layer in geometry.index_key_source_layers:
            index_offset = offset
            offset += _pad(entries * geometry.index_format.record_bytes(geometry.index_head_dim), PART_ALIGNMENT)
        if layer in geometry.kv_source_layers:
            main_offset = offset
            offset += _pad(entries * geometry.main_format.record_bytes(geometry.head_dim), PART_ALIGNMENT)
        parts.append(BlockPart(layer, entries, index_offset, main_offset, offset))
    return tuple(parts)


def compute_layout(geometry: CacheGeometry) -> CacheLayout:
    """The layout of both pools; equal geometries give equal layouts on every rank."""
    parts = block_parts(geometry)
    starts = [0, *(part.end for part in parts)]
    block_spans = tuple(
        LayerSpan(part.layer, start, part.end - start) for part, start in zip(parts, starts, strict=False)
    )
    payload = starts[-1]
    block_alignment = math.lcm(BLOCK_ALIGNMENT, geometry.main_format.record_bytes(geometry.head_dim))

    record = geometry.window_format.record_bytes(geometry.head_dim)
    ring_bytes = _pad(geometry.ring_length * record, PART_ALIGNMENT)
    window_spans = tuple(
        LayerSpan(layer, layer * ring_bytes, ring_bytes) for layer in range(geometry.num_run_time_layers) if ring_bytes
    )
    offset = ring_bytes * geometry.num_run_time_layers
    state_bytes = geometry.compressor_ring_length * 2 * geometry.head_dim * (8 if geometry.plain else 4)
    compressor_spans = tuple(
        LayerSpan(layer, offset + order * state_bytes, state_bytes)
        for order, layer in enumerate(geometry.pooling_layers)
    )
    offset += state_bytes * len(compressor_spans)
    slot_alignment = math.lcm(PART_ALIGNMENT, record) if ring_bytes else BLOCK_ALIGNMENT
    return CacheLayout(
        tokens_per_block=geometry.tokens_per_block,
        block_bytes=_pad(payload, block_alignment),
        block_payload_bytes=payload,
        slot_bytes=_pad(offset, slot_alignment),
        slot_stored_bytes=ring_bytes * geometry.num_stored_layers,
        window_size=geometry.window_size,
        ring_length=geometry.ring_length,
        compressor_ring_length=geometry.compressor_ring_length,
        block_spans=block_spans,
        window_spans=window_spans,
        compressor_spans=compressor_spans,
        fingerprint=_fingerprint(geometry),
    )


def _fingerprint(geometry: CacheGeometry) -> str:
    facts = asdict(geometry)
    facts["backtracking"] = geometry.backtracking
    for name in ("draft_length", "max_backtracking"):  # only their maximum decides what a byte means
        del facts[name]
    facts["formats"] = [geometry.window_format.name, geometry.main_format.name, geometry.index_format.name]
    facts["version"] = LAYOUT_VERSION
    return hashlib.sha256(json.dumps(facts, sort_keys=True).encode()).hexdigest()


def _pad(num_bytes: int, alignment: int) -> int:
    return -(-num_bytes // alignment) * alignment
