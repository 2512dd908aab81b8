"""A config with the dimensions of the release but few layers: it fits on one device and has every kind of layer."""

from __future__ import annotations

from typing import Any

from thalweg.model.config import ModelConfig
from thalweg.model.tiny import small_config

ENGRAM_SHARE = 16
"""The Engram table has one row for so many of the release's; a row is as wide."""

_TEXT: dict[str, Any] = {
    "vocab_size": 129280,
    "hidden_size": 5120,
    "num_hidden_layers": 8,
    "num_attention_heads": 64,
    "head_dim": 512,
    "qk_rope_head_dim": 64,
    "q_lora_rank": 1280,
    "o_groups": 8,
    "o_lora_rank": 1024,
    "max_position_embeddings": 1048576,
    "rope_scaling": {
        "rope_type": "yarn",
        "factor": 16,
        "beta_fast": 32,
        "beta_slow": 1,
        "original_max_position_embeddings": 65536,
    },
    "n_routed_experts": 384,
    "num_experts_per_tok": 6,
    "moe_intermediate_size": 2304,
    "sliding_window": 128,
    "compress_ratios": [0, 2, 2, 1, 1, 1, 1, 1],
    "kv_source_layer_ids": [1, 3],
    "index_source_layer_ids": [1, 3, 5],
    "index_n_heads": 32,
    "index_head_dim": 128,
    "index_topk": 512,
    "candidate_source_layer_id": 3,
    "candidate_topk_blocks": 2048,
    "candidate_block_size": 8,
    "engram_layer_ids": [1],
    "engram_max_ngram_size": 4,
    "engram_vocab_size": 16_000_000 // ENGRAM_SHARE,
    "engram_n_heads": 8,
    "engram_head_dim": 256,
    "engram_compressed_vocab_size": 99092,
}
_DRAFTS: dict[str, Any] = {
    "dspark_block_size": 5,
    "dspark_markov_rank": 256,
    "dspark_n_routed_experts": 128,
    "dspark_num_experts_per_tok": 3,
    "dspark_noise_token_id": 128799,
}


def real_width_config(*, num_draft_layers: int = 0) -> ModelConfig:
    """Eight layers: a window-only one; a producer segment of ratio 2, whose source has Engram; and a consumer segment
    of ratio 1, whose source publishes the candidate blocks that a later indexer obeys.
    """
    drafts = _DRAFTS | {"num_nextn_predict_layers": num_draft_layers} if num_draft_layers else {}
    return small_config(**_TEXT, **drafts)
