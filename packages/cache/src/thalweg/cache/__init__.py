"""Paged KV cache and state slots of DeepSeek-V4.1: layouts, pools, rings, plans."""

from thalweg.cache._step_rows import MetadataShape
from thalweg.cache.copy import copy_blocks, copy_states, zero_states
from thalweg.cache.decode_metadata import DecodeArrays, build_decode_metadata
from thalweg.cache.geometry import CacheGeometry
from thalweg.cache.layout import BlockPart, block_parts, compute_layout
from thalweg.cache.load_plan import LoadPlan, LoadPlanBuilder
from thalweg.cache.pool import CachePools, PagedBlocks
from thalweg.cache.prefill_metadata import PrefillArrays, build_prefill_metadata
from thalweg.cache.ring import (
    expand_window,
    flat_slots,
    min_compressor_ring_length,
    min_ring_length,
    prefill_store_slots,
    window_reads,
)
from thalweg.cache.sizing import (
    agree_num_blocks,
    block_table_width,
    check_num_blocks,
    free_bytes_for_blocks,
    max_sequence_length,
    min_num_blocks,
    num_blocks_in,
    num_state_slots,
)
from thalweg.cache.slots import StateSlots

__all__ = [
    "BlockPart",
    "CacheGeometry",
    "CachePools",
    "DecodeArrays",
    "LoadPlan",
    "LoadPlanBuilder",
    "MetadataShape",
    "PagedBlocks",
    "PrefillArrays",
    "StateSlots",
    "agree_num_blocks",
    "block_parts",
    "block_table_width",
    "build_decode_metadata",
    "build_prefill_metadata",
    "check_num_blocks",
    "compute_layout",
    "copy_blocks",
    "copy_states",
    "expand_window",
    "flat_slots",
    "free_bytes_for_blocks",
    "max_sequence_length",
    "min_compressor_ring_length",
    "min_num_blocks",
    "min_ring_length",
    "num_blocks_in",
    "num_state_slots",
    "prefill_store_slots",
    "window_reads",
    "zero_states",
]
