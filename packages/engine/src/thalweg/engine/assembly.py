"""Builds an engine from a configuration: the only place where the components meet."""

from __future__ import annotations

import logging

from thalweg.cache import CacheGeometry, CachePools, MetadataShape, compute_layout
from thalweg.engine.admission import Admission, Limits
from thalweg.engine.checkpoint import checkpoint_directory
from thalweg.engine.config import EngineConfig
from thalweg.engine.engine import LLMEngine
from thalweg.engine.inputs import InputBuilder
from thalweg.engine.pool_sizes import size_pools
from thalweg.engine.runner import ModelRunner
from thalweg.engine.sampler import Sampler
from thalweg.engine.token_rows import CompressedVocabulary
from thalweg.engine.tokenizer import Tokenizer
from thalweg.interfaces import load_backend
from thalweg.kernels import bind
from thalweg.model import Model, ModelConfig
from thalweg.scheduler import Scheduler

_LOG = logging.getLogger(__name__)


def build_engine(config: EngineConfig) -> LLMEngine:
    """Load the checkpoint and wire everything together.

    Raises ConfigError for options or config values that are not supported, CheckpointError for a damaged checkpoint,
    CapacityError when the cache would be too small, BackendUnavailableError for a backend that is not installed.
    """
    path = checkpoint_directory(config)
    facts = ModelConfig.from_file(path)
    config = config.for_checkpoint(max_position_embeddings=facts.max_position_embeddings)
    tokenizer = Tokenizer.from_file(
        config.tokenizer or path,
        bos_token_id=facts.bos_token_id,
        eos_token_id=facts.eos_token_id,
        pad_token_id=facts.pad_token_id,
        vocab_size=facts.vocab_size,
    )
    backend = load_backend(config.backend.name)
    ops = bind(backend.name, dict(config.backend.kernels), config.backend.batch_invariant, registry=backend.registry)
    geometry = cache_geometry(facts, config)
    sizes = size_pools(config, compute_layout(geometry))
    # Everything that can refuse the options comes before the weights, which may take long to load.
    scheduler = Scheduler(
        config.scheduler,
        num_blocks=sizes.num_blocks,
        num_state_slots=sizes.num_state_slots,
        block_size=geometry.tokens_per_block,
        draft_length=config.speculation.draft_length or 0,
        tail_length=facts.engram_max_ngram_size if facts.engram_layer_ids else 1,
        vocab_size=facts.vocab_size,
    )
    limits = Limits(facts.vocab_size, config.scheduler.max_model_len, geometry.tokens_per_block, sizes.num_blocks)
    admission = Admission(tokenizer, limits, config.seed)
    model = Model.load(path, mode=config.mode, arithmetic=config.arithmetic, ops=ops)
    pools = CachePools(geometry, sizes.num_blocks, sizes.num_state_slots, backend.device)
    inputs = InputBuilder(MetadataShape.of(geometry), sizes.table_width, compressed_vocabulary(model), backend.device)
    _LOG.info("loaded %s: %d cache blocks, %d state slots", path, sizes.num_blocks, sizes.num_state_slots)
    return LLMEngine(scheduler, ModelRunner(model, pools, inputs, Sampler(ops)), tokenizer, admission)


def cache_geometry(facts: ModelConfig, config: EngineConfig) -> CacheGeometry:
    """What the cache layout needs to know about a checkpoint."""
    return CacheGeometry(
        num_layers=facts.num_hidden_layers,
        compress_ratios=facts.compress_ratios[: facts.num_hidden_layers],
        kv_source_layers=facts.kv_source_layer_ids,
        index_key_source_layers=facts.index_k_source_layer_ids,
        head_dim=facts.head_dim,
        index_head_dim=facts.index_head_dim,
        window_size=facts.sliding_window,
        draft_length=config.speculation.draft_length or 0,
        fp4_main=facts.use_fp4_sparse_kv,
        plain=config.mode == "plain",
    )


def compressed_vocabulary(model: Model) -> CompressedVocabulary:
    """The map behind the n-gram windows of a model."""
    if model.vocabulary is None:
        return CompressedVocabulary.none()
    return CompressedVocabulary(
        model.vocabulary.compressed_ids, model.vocabulary.pad_id, model.config.engram_max_ngram_size
    )
