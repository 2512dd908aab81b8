"""The dimensions of the small model, and of a toy on which tests train; `config.json` is made from here."""

from __future__ import annotations

from dataclasses import replace
from typing import Any

from thalweg.model.config import ModelConfig
from thalweg.model.engram_vocabulary import EngramVocabulary
from thalweg.model.tiny import small_config

_SMALL: dict[str, Any] = {
    "vocab_size": 4096,
    "hidden_size": 256,
    "num_hidden_layers": 10,
    "num_attention_heads": 8,
    "head_dim": 64,
    "qk_rope_head_dim": 32,
    "q_lora_rank": 128,
    "o_groups": 2,
    "o_lora_rank": 64,
    "max_position_embeddings": 8192,
    "rope_scaling": {
        "rope_type": "yarn",
        "factor": 8,
        "beta_fast": 32,
        "beta_slow": 1,
        "original_max_position_embeddings": 1024,
    },
    "n_routed_experts": 16,
    "num_experts_per_tok": 2,
    "moe_intermediate_size": 128,
    "sliding_window": 64,
    "compress_ratios": [0, 0, 2, 2, 2, 2, 1, 1, 1, 1],
    "kv_source_layer_ids": [2, 4, 6],
    "index_source_layer_ids": [2, 4, 6, 8],
    "index_n_heads": 8,
    "index_head_dim": 64,
    "index_topk": 64,
    "candidate_source_layer_id": 6,
    "candidate_topk_blocks": 32,
    "candidate_block_size": 8,
    "engram_layer_ids": [1, 4],
    "engram_max_ngram_size": 4,
    # As large as leaves all files together, drafter and tokenizer included, below 24,000,000 bytes.
    "engram_vocab_size": 1300,
    "engram_n_heads": 4,
    "engram_head_dim": 32,
}
DRAFTER: dict[str, Any] = {
    "num_nextn_predict_layers": 3,
    "dspark_block_size": 5,
    "dspark_markov_rank": 32,
    "dspark_n_routed_experts": 8,
    "dspark_num_experts_per_tok": 2,
    "dspark_noise_token_id": 3,
    "dspark_target_layer_ids": [7, 8, 9],
}
"""What a config with draft layers has besides the zeros at the end of its compress ratios."""
_TOY: dict[str, Any] = {
    "hidden_size": 64,
    "num_hidden_layers": 7,
    "sliding_window": 16,
    "compress_ratios": [0, 0, 2, 2, 1, 1, 1],
    "kv_source_layer_ids": [2, 4],
    "index_source_layer_ids": [2, 4, 6],
    "index_topk": 16,
    "candidate_source_layer_id": 4,
    "candidate_topk_blocks": 8,
    "candidate_block_size": 8,
}


def small_model(vocabulary: EngramVocabulary, *, drafter: bool) -> ModelConfig:
    """The small model over a tokenizer of 4,096 entries. drafter: with draft layers, as it is shipped."""
    config = small_config(**_SMALL | (DRAFTER if drafter else {}))
    return replace(config, engram_compressed_vocab_size=vocabulary.size)


def toy_model(vocabulary: EngramVocabulary, vocab_size: int) -> ModelConfig:
    """Every mechanism of the small model within a hundred tokens, small enough to train on a CPU."""
    config = small_config(**_TOY, vocab_size=vocab_size)
    return replace(config, engram_compressed_vocab_size=vocabulary.size)
