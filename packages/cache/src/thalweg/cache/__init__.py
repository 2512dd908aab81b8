"""Paged KV cache and state slots of DeepSeek-V4.1: layouts, pools, rings, plans."""

from thalweg.cache._step_rows import MetadataShape
from thalweg.cache.consumer_metadata import ConsumerArrays, build_consumer_metadata
from thalweg.cache.context_parallel import (
    BoundaryExchange,
    MirrorRows,
    boundary_exchange,
    mirror_length,
    mirror_rows,
)
from thalweg.cache.copy import copy_blocks, copy_states, zero_states
from thalweg.cache.decode_metadata import DecodeArrays, build_decode_metadata
from thalweg.cache.fingerprint import format_fingerprint
from thalweg.cache.geometry import CacheGeometry
from thalweg.cache.layout import BlockPart, block_parts, compute_layout
from thalweg.cache.load_plan import LoadPlan, LoadPlanBuilder
from thalweg.cache.pool import CachePools, PagedBlocks
from thalweg.cache.prefill_metadata import PrefillArrays, build_prefill_metadata
from thalweg.cache.replay import (
    ConsumerReplay,
    ReplayMode,
    SequenceStart,
    exact_keep_tokens,
    min_keep_tokens,
    start_after_hit,
)
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
from thalweg.cache.state_exchange import StateExchange
from thalweg.cache.store_plan import SavePlan, layer_waves, plan_save, wave_segments, whole_block, window_ends

__all__ = [
    "BlockPart",
    "BoundaryExchange",
    "CacheGeometry",
    "CachePools",
    "ConsumerArrays",
    "ConsumerReplay",
    "DecodeArrays",
    "LoadPlan",
    "LoadPlanBuilder",
    "MetadataShape",
    "MirrorRows",
    "PagedBlocks",
    "PrefillArrays",
    "ReplayMode",
    "SavePlan",
    "SequenceStart",
    "StateExchange",
    "StateSlots",
    "agree_num_blocks",
    "block_parts",
    "block_table_width",
    "boundary_exchange",
    "build_consumer_metadata",
    "build_decode_metadata",
    "build_prefill_metadata",
    "check_num_blocks",
    "compute_layout",
    "copy_blocks",
    "copy_states",
    "exact_keep_tokens",
    "expand_window",
    "flat_slots",
    "format_fingerprint",
    "free_bytes_for_blocks",
    "layer_waves",
    "max_sequence_length",
    "min_compressor_ring_length",
    "min_keep_tokens",
    "min_num_blocks",
    "min_ring_length",
    "mirror_length",
    "mirror_rows",
    "num_blocks_in",
    "num_state_slots",
    "plan_save",
    "prefill_store_slots",
    "start_after_hit",
    "wave_segments",
    "whole_block",
    "window_ends",
    "window_reads",
    "zero_states",
]
