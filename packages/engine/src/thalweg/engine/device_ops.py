"""The ops that the engine calls on a device: what a backend lacks of them is said before anything is loaded."""

from __future__ import annotations

from thalweg.interfaces import BackendUnavailableError
from thalweg.kernels import BoundOps

DEVICE_OPS = (
    "add_biases",
    "apply_penalties",
    "apply_token_bitmask",
    "argmax_lowest",
    "bf16_linear",
    "block_scores",
    "candidate_scores_rows",
    "cat_kv_indices",
    "clear_broken_rows",
    "combine_experts",
    "compact_lengths",
    "confidence",
    "correct_context_lengths",
    "count_tokens",
    "coupled_tokens",
    "decode_metadata",
    "draft_metadata",
    "draw",
    "engram_hash",
    "engram_lookup",
    "engram_update",
    "expand_window_pivots",
    "expand_window_reads",
    "expert_linear",
    "filtered_logprobs",
    "forbid_tokens",
    "force_tokens",
    "fp8_linear",
    "gather_ngram_ids",
    "gather_parts",
    "gather_records",
    "gather_token_ids",
    "grouped_fp8_linear",
    "hc_advance",
    "hc_collapse",
    "hc_mix",
    "hc_read",
    "indexer_scores_rows",
    "keep_largest",
    "log_softmax",
    "match_drafts",
    "norm_quantize",
    "norm_rope",
    "norm_rope_store",
    "pack_fp8_weight",
    "paged_candidate_scores",
    "paged_indexer_scores",
    "paged_sparse_attention",
    "plan_experts",
    "pool_decode",
    "pool_prefill",
    "quantize_mxfp8",
    "redistribute",
    "reset_token_counts",
    "restore_indices",
    "rms_norm",
    "rotate_quantize_mxfp4",
    "rotate_rows",
    "sample_tokens",
    "segments_to_slots",
    "select_candidate_blocks",
    "select_topk",
    "sparse_attention",
    "store_draft_rows",
    "store_records",
    "sum_smaller_probs",
    "swiglu_quantize",
    "target_feature",
    "token_logprobs",
    "top_logprobs",
    "topk_gate",
    "topk_to_slots",
    "uniform",
    "unrotate_quantize",
    "verify_drafts",
)
"""Of sampling, of the inputs of a step, and of the model on stored formats. What else the registry has is called by the
reference model alone, or by other ops."""


def missing_ops(ops: BoundOps) -> list[str]:
    """Those that nothing computes, overrides included."""
    return [op for op in DEVICE_OPS if not _is_served(ops, op)]


def by_reference(ops: list[str]) -> str:
    """The value of the option `kernels` on a command line that takes the torch reference for ops."""
    return ",".join(f"{op}=reference" for op in ops)


def check_ops(ops: BoundOps, backend: str) -> None:
    """Raise BackendUnavailableError, which names them, for ops that nothing computes."""
    missing = missing_ops(ops)
    if missing:
        raise BackendUnavailableError(
            f"{backend} has nothing that computes {', '.join(missing)}; if the torch reference will do, ask for it by "
            f"name: --kernels {by_reference(missing)}, or kernels with those pairs"
        )


def _is_served(ops: BoundOps, op: str) -> bool:
    try:
        ops.implementation(op)
    except BackendUnavailableError:
        return False
    return True
