"""The ops of this package and their implementations."""

from __future__ import annotations

import functools
import inspect
from collections.abc import Callable
from typing import Any

from thalweg.interfaces import InvariantError
from thalweg.kernels.reference import (
    async_inputs,
    attention,
    bitmask,
    cache,
    casts,
    compressor,
    coupled,
    drafting,
    engram,
    experts,
    filters,
    fused_engram,
    fused_rows,
    fused_streams,
    gemm,
    hyper_connections,
    indexer,
    logprobs,
    metadata,
    moe,
    norm,
    norm_rope,
    numerics,
    packed_linear,
    paged_attention,
    paged_indexer,
    penalties,
    quant,
    random_numbers,
    rope,
    sampling,
    topk_lists,
    verification,
    vocabulary_rows,
)
from thalweg.kernels.registry import Implementation, OpSpec, Registry, Tolerance
from thalweg.kernels.sm90 import async_inputs as sm90_async_inputs
from thalweg.kernels.sm90 import attention_paged as sm90_attention_paged
from thalweg.kernels.sm90 import attention_rows as sm90_attention_rows
from thalweg.kernels.sm90 import bf16_linear as sm90_bf16_linear
from thalweg.kernels.sm90 import bitmask as sm90_bitmask
from thalweg.kernels.sm90 import blocks as sm90_blocks
from thalweg.kernels.sm90 import broken_rows as sm90_broken_rows
from thalweg.kernels.sm90 import cache as sm90_cache
from thalweg.kernels.sm90 import casts as sm90_casts
from thalweg.kernels.sm90 import compressor as sm90_compressor
from thalweg.kernels.sm90 import compressor_prefill as sm90_compressor_prefill
from thalweg.kernels.sm90 import draft_heads as sm90_draft_heads
from thalweg.kernels.sm90 import drafting as sm90_drafting
from thalweg.kernels.sm90 import engram as sm90_engram
from thalweg.kernels.sm90 import experts_linear as sm90_experts_linear
from thalweg.kernels.sm90 import experts_plan as sm90_experts_plan
from thalweg.kernels.sm90 import fp8_linear as sm90_fp8_linear
from thalweg.kernels.sm90 import gate as sm90_gate
from thalweg.kernels.sm90 import hyper_connections as sm90_hyper_connections
from thalweg.kernels.sm90 import hyper_connections_mix as sm90_hyper_connections_mix
from thalweg.kernels.sm90 import index_rows as sm90_index_rows
from thalweg.kernels.sm90 import indexer as sm90_indexer
from thalweg.kernels.sm90 import metadata as sm90_metadata
from thalweg.kernels.sm90 import norm as sm90_norm
from thalweg.kernels.sm90 import norm_rope as sm90_norm_rope
from thalweg.kernels.sm90 import record_bytes as sm90_record_bytes
from thalweg.kernels.sm90 import redistribute as sm90_redistribute
from thalweg.kernels.sm90 import rope as sm90_rope
from thalweg.kernels.sm90 import sampling_counts as sm90_sampling_counts
from thalweg.kernels.sm90 import sampling_filters as sm90_sampling_filters
from thalweg.kernels.sm90 import sampling_judge as sm90_sampling_judge
from thalweg.kernels.sm90 import sampling_lists as sm90_sampling_lists
from thalweg.kernels.sm90 import sampling_logits as sm90_sampling_logits
from thalweg.kernels.sm90 import sampling_random as sm90_sampling_random
from thalweg.kernels.sm90 import sampling_verification as sm90_sampling_verification
from thalweg.kernels.sm90 import sampling_weights as sm90_sampling_weights
from thalweg.kernels.sm90 import selected_slots as sm90_selected_slots
from thalweg.kernels.sm90 import swiglu as sm90_swiglu
from thalweg.kernels.sm90 import topk as sm90_topk

MODULES = (
    numerics,
    gemm,
    experts,
    norm,
    rope,
    quant,
    casts,
    hyper_connections,
    moe,
    engram,
    indexer,
    paged_indexer,
    attention,
    paged_attention,
    random_numbers,
    vocabulary_rows,
    filters,
    sampling,
    penalties,
    compressor,
    cache,
    norm_rope,
    metadata,
    coupled,
    drafting,
    verification,
    logprobs,
    bitmask,
    topk_lists,
    packed_linear,
    async_inputs,
    fused_rows,
    fused_streams,
    fused_engram,
)

SUMMING_OPS = frozenset(
    {
        "matmul",
        "fp8_linear",
        "grouped_fp8_linear",
        "bf16_linear",
        "topk_gate",
        "grouped_matmul",
        "rms_norm",
        "norm_rope",
        "norm_rope_store",
        "inverse_frequencies",
        "rope_table",
        "apply_rope",
        "hc_mixes",
        "hc_coefficients",
        "hc_collapse",
        "hc_expand",
        "gate_scores",
        "route",
        "swiglu",
        "swiglu_psum",
        "expert_linear",
        "combine_experts",
        "engram_gate",
        "engram_apply",
        "indexer_scores",
        *paged_indexer.OPS,
        "sparse_attention",
        "sparse_attention_stats",
        "paged_sparse_attention",
        "pool_groups",
        "pool_prefill",
        "pool_decode",
        "log_softmax",
        "filtered_logprobs",
        "target_feature",
        "confidence",
        "judge_drafts",
        "verify_drafts",
        "sum_smaller_probs",
        "norm_quantize",
        "swiglu_quantize",
        "hc_read",
        "hc_advance",
        "hc_mix",
        "engram_update",
    }
)
"""Ops whose float results another order of summation, or another exp, changes; all others must be equal bit for bit."""

GRAPH_SAFE_OPS = frozenset(
    {
        *async_inputs.OPS,
        *bitmask.OPS,
        *coupled.OPS,
        *drafting.OPS,
        *filters.OPS,
        *logprobs.OPS,
        *penalties.OPS,
        *random_numbers.OPS,
        *sampling.OPS,
        *topk_lists.OPS,
        *verification.OPS,
        *vocabulary_rows.OPS,
    }
)
"""Ops whose reference reads nothing back, so that a graph can hold it on a device as well."""


DEVICE_MODULES = (
    sm90_async_inputs,
    sm90_attention_paged,
    sm90_attention_rows,
    sm90_bf16_linear,
    sm90_bitmask,
    sm90_blocks,
    sm90_broken_rows,
    sm90_cache,
    sm90_casts,
    sm90_compressor,
    sm90_compressor_prefill,
    sm90_draft_heads,
    sm90_drafting,
    sm90_engram,
    sm90_experts_linear,
    sm90_experts_plan,
    sm90_fp8_linear,
    sm90_gate,
    sm90_hyper_connections,
    sm90_index_rows,
    sm90_indexer,
    sm90_metadata,
    sm90_norm,
    sm90_norm_rope,
    sm90_record_bytes,
    sm90_redistribute,
    sm90_rope,
    sm90_sampling_counts,
    sm90_sampling_filters,
    sm90_sampling_judge,
    sm90_sampling_lists,
    sm90_sampling_logits,
    sm90_sampling_random,
    sm90_sampling_verification,
    sm90_sampling_weights,
    sm90_selected_slots,
    sm90_swiglu,
    sm90_topk,
    sm90_hyper_connections_mix,
)
"""Modules with implementations for devices. Importing one loads no library of a device."""


def reference_ops() -> dict[str, Callable[..., Any]]:
    """Every reference op by name."""
    ops: dict[str, Callable[..., Any]] = {}
    for module in MODULES:
        for name, function in module.OPS.items():
            if name in ops:
                raise InvariantError(f"op {name} is defined twice, the second time in {module.__name__}")
            ops[name] = function
    return ops


@functools.cache
def default_registry() -> Registry:
    """The ops of this package with their CPU implementation, which is the reference itself, and those for devices."""
    ops = reference_ops()
    specs = [
        OpSpec(
            name=name,
            contract=inspect.getdoc(function) or "",
            reference=function,
            tolerance=Tolerance() if name in SUMMING_OPS else None,
        )
        for name, function in ops.items()
    ]
    implementations = [
        Implementation(
            op=name,
            backend="cpu",
            provider="reference",
            function=function,
            deterministic=True,
            batch_invariant=True,
            graph_safe=name in GRAPH_SAFE_OPS,
        )
        for name, function in ops.items()
    ]
    devices = [implementation for module in DEVICE_MODULES for implementation in module.IMPLEMENTATIONS]
    return Registry(specs, [*implementations, *devices])
